/* What each token takes from the others: for each head, queries by keys in whole numbers, the weights
 * of all tokens, which are whole numbers too, and these by values. */
#include "encoder.h"

#include <string.h>

#define KEY_LIMIT 8191    /* 32 products of two of these have 31 bits */
#define WEIGHT_LIMIT 8191 /* and 128 of these two */
#define VALUE_LIMIT 2047
#define LOG2_E 1.44269504f
#define ROOT_OF_HEAD 5.65685425f
#define SMALLEST_POWER (-30.0f) /* of 2: far below the half of a WEIGHT_LIMIT-th */
#define NEVER (-1e30f)

typedef int16_t half_lanes __attribute__((vector_size(LANES * sizeof(int16_t))));

/* Rounded up to a whole number of tables. */
static size_t in_tables(size_t count) {
    return (count + CW_OUTPUTS - 1) / CW_OUTPUTS * CW_OUTPUTS;
}

struct head {
    const float *keys; /* of the first token; `stride` floats on, those of the next */
    const float *values;
    size_t stride, tokens;
    float key_scales[MAX_TOKENS], value_scales[HEAD];
};

/* An output for each token. */
static void put_keys(struct run *run, struct head *head) {
    int16_t row[HEAD];
    memset(run->keys, 0, in_tables(head->tokens) * HEAD * sizeof *run->keys);
    memset(head->key_scales, 0, sizeof head->key_scales);
    for (size_t n = 0; n < head->tokens; n++) {
        head->key_scales[n] = cw_round_row(head->keys + n * head->stride, HEAD, KEY_LIMIT, row);
        for (size_t input = 0; input < HEAD; input += 2)
            memcpy(run->keys + cw_weight_place(HEAD, n, input), row + input, 2 * sizeof *row);
    }
}

/* What the values of each output are multiplied by, so that the largest of all tokens has VALUE_LIMIT. */
static void find_factors(struct head *head, float *factors) {
    uint32_t most[HEAD] = {0};
    for (size_t n = 0; n < head->tokens; n++)
        for (size_t output = 0; output < HEAD; output++) {
            uint32_t bits;
            memcpy(&bits, head->values + n * head->stride + output, sizeof bits);
            bits &= MAGNITUDE;
            most[output] = bits > most[output] ? bits : most[output];
        }
    for (size_t output = 0; output < HEAD; output++) {
        float largest;
        memcpy(&largest, most + output, sizeof largest);
        int is_one = most[output] < INFINITE && largest >= SMALLEST;
        factors[output] = is_one ? VALUE_LIMIT / largest : 0;
        head->value_scales[output] = is_one ? largest / VALUE_LIMIT : 0;
    }
}

static uint32_t rounded(float value) {
    uint32_t bits;
    value += TO_WHOLE;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* An input for each token; behind an odd number of them one of 0. */
static void put_values(struct run *run, struct head *head) {
    static const float nothing[HEAD];
    float factors[HEAD];
    size_t tokens = head->tokens, inputs = tokens + tokens % 2;
    find_factors(head, factors);
    for (size_t at = 0; at < HEAD; at += CW_OUTPUTS)
        for (size_t n = 0; n < inputs; n += 2) {
            const float *first = head->values + n * head->stride + at, *own = factors + at;
            const float *second = n + 1 < tokens ? first + head->stride : nothing;
            uint32_t both[CW_OUTPUTS];
            for (size_t k = 0; k < CW_OUTPUTS; k++)
                both[k] = (rounded(first[k] * own[k]) & 0xffff) | rounded(second[k] * own[k]) << 16;
            memcpy(run->weighed + cw_weight_place(inputs, at, n), both, sizeof both);
        }
}

static float largest_of(const float *values, size_t count) {
    lanes most = {NEVER, NEVER, NEVER, NEVER}, part;
    for (size_t n = 0; n < count; n += LANES) {
        memcpy(&part, values + n, sizeof part);
        whole_lanes is_more = part > most;
        most = (lanes)(((whole_lanes)part & is_more) | ((whole_lanes)most & ~is_more));
    }
    float left = most[0] > most[1] ? most[0] : most[1];
    float right = most[2] > most[3] ? most[2] : most[3];
    return left > right ? left : right;
}

/* 2 to the power of each value less the largest, in WEIGHT_LIMIT-ths. The polynomial is that of 2^x
 * from -0.5 to 0.5, with an error of less than 5e-5. */
static int32_t weigh(const float *powers, size_t count, int16_t *weights) {
    const lanes least = {SMALLEST_POWER, SMALLEST_POWER, SMALLEST_POWER, SMALLEST_POWER};
    const whole_lanes base = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000}; /* TO_WHOLE */
    float largest = largest_of(powers, count);
    whole_lanes total = {0};
    for (size_t n = 0; n < count; n += LANES) {
        lanes power, moved, x, two;
        memcpy(&power, powers + n, sizeof power);
        power -= largest;
        whole_lanes is_more = power > least;
        power = (lanes)(((whole_lanes)power & is_more) | ((whole_lanes)least & ~is_more));
        moved = power + TO_WHOLE;
        x = power - (moved - TO_WHOLE);
        two = 1 + x * (0.693147181f +
                       x * (0.240226507f + x * (0.0555041087f + x * 0.00961812911f)));
        two = (lanes)((whole_lanes)two + ((whole_lanes)moved - base) * (1 << 23));
        whole_lanes weight = (whole_lanes)(two * WEIGHT_LIMIT + TO_WHOLE) - base;
        half_lanes half = __builtin_convertvector(weight, half_lanes);
        memcpy(weights + n, &half, sizeof half);
        total += weight;
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* How much the queries of some tokens match all keys, as powers of 2. */
static void match(const struct run *run, const struct head *head, const int16_t *queries,
                  const float *scales, size_t count, float powers[CW_ROWS][MAX_TOKENS]) {
    int32_t sums[CW_ROWS][CW_OUTPUTS];
    for (size_t at = 0; at < head->tokens; at += CW_OUTPUTS) {
        run->net->multiply(queries, run->keys + at * HEAD, HEAD / 2, sums);
        for (size_t row = 0; row < count; row++)
            for (size_t n = 0; n < CW_OUTPUTS; n += LANES) {
                whole_lanes whole;
                lanes own;
                memcpy(&whole, sums[row] + n, sizeof whole);
                memcpy(&own, head->key_scales + at + n, sizeof own);
                own = __builtin_convertvector(whole, lanes) * (own * scales[row]);
                memcpy(powers[row] + at + n, &own, sizeof own);
            }
    }
    for (size_t row = 0; row < count; row++)
        for (size_t n = head->tokens; n < in_tables(head->tokens); n++)
            powers[row][n] = NEVER;
}

/* Of at most CW_ROWS queries what they take, at `into`. */
static void take(const struct run *run, const struct head *head, const int16_t *queries,
                 const float *scales, size_t count, float *into) {
    size_t tokens = head->tokens, inputs = tokens + tokens % 2, width = run->net->shape.width;
    int32_t sums[CW_ROWS][CW_OUTPUTS];
    float powers[CW_ROWS][MAX_TOKENS], shares[CW_ROWS];
    int16_t weights[CW_ROWS * MAX_TOKENS + CW_OUTPUTS];
    match(run, head, queries, scales, count, powers);
    /* A row writes some zeros behind its inputs, which the next one replaces. */
    for (size_t row = 0; row < count; row++)
        shares[row] =
            1 / (float)weigh(powers[row], in_tables(tokens), weights + row * inputs);
    memset(weights + count * inputs, 0, (CW_ROWS - count) * inputs * sizeof *weights);
    for (size_t at = 0; at < HEAD; at += CW_OUTPUTS) {
        run->net->multiply(weights, run->weighed + at * inputs, inputs / 2, sums);
        for (size_t row = 0; row < count; row++)
            for (size_t n = 0; n < CW_OUTPUTS; n += LANES) {
                whole_lanes whole;
                lanes own;
                memcpy(&whole, sums[row] + n, sizeof whole);
                memcpy(&own, head->value_scales + at + n, sizeof own);
                own = __builtin_convertvector(whole, lanes) * (own * shares[row]);
                memcpy(into + row * width + at + n, &own, sizeof own);
            }
    }
}

/* From `run->wide`, which has queries, keys and values of each token, `run->mixed` for those from `from` to
 * `end`. */
void cw_attend(struct run *run, size_t tokens, size_t from, size_t end) {
    size_t width = run->net->shape.width, stride = 3 * width;
    for (size_t at = 0; at < width; at += HEAD) {
        struct head head;
        head.keys = run->wide + width + at;
        head.values = run->wide + 2 * width + at;
        head.stride = stride;
        head.tokens = tokens;
        put_keys(run, &head);
        put_values(run, &head);
        for (size_t n = from; n < end; n += CW_ROWS) {
            int16_t queries[CW_ROWS * HEAD];
            float scales[CW_ROWS];
            size_t count = end - n < CW_ROWS ? end - n : CW_ROWS;
            for (size_t row = 0; row < count; row++)
                scales[row] = cw_round_row(run->wide + (n + row) * stride + at, HEAD, KEY_LIMIT,
                                           queries + row * HEAD) *
                              (LOG2_E / ROOT_OF_HEAD);
            memset(queries + count * HEAD, 0, (CW_ROWS - count) * HEAD * sizeof *queries);
            take(run, &head, queries, scales, count, run->mixed + (n - from) * width + at);
        }
    }
}
