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
#define TO_WHOLE 12582912.0f
#define NEVER (-1e30f)

#define LANES 4
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t marks __attribute__((vector_size(LANES * sizeof(int32_t))));

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

/* A table with an output for each token, and one with an input for each. */
static void make_tables(struct run *run, struct head *head) {
    size_t tokens = head->tokens, inputs = tokens + tokens % 2;
    int16_t row[HEAD > MAX_TOKENS ? HEAD : MAX_TOKENS];
    memset(run->keys, 0, in_tables(tokens) * HEAD * sizeof *run->keys);
    for (size_t n = 0; n < tokens; n++) {
        head->key_scales[n] = cw_round_row(head->keys + n * head->stride, HEAD, KEY_LIMIT, row);
        for (size_t input = 0; input < HEAD; input += 2)
            memcpy(run->keys + cw_weight_place(HEAD, n, input), row + input, 2 * sizeof *row);
    }
    for (size_t output = 0; output < HEAD; output++) {
        float column[MAX_TOKENS + 1];
        for (size_t n = 0; n < tokens; n++)
            column[n] = head->values[n * head->stride + output];
        column[tokens] = 0;
        head->value_scales[output] = cw_round_row(column, inputs, VALUE_LIMIT, row);
        for (size_t n = 0; n < inputs; n += 2)
            memcpy(run->weighed + cw_weight_place(inputs, output, n), row + n, 2 * sizeof *row);
    }
}

static float largest_of(const float *values, size_t count) {
    lanes most = {NEVER, NEVER, NEVER, NEVER}, part;
    for (size_t n = 0; n < count; n += LANES) {
        memcpy(&part, values + n, sizeof part);
        marks is_more = part > most;
        most = (lanes)(((marks)part & is_more) | ((marks)most & ~is_more));
    }
    float left = most[0] > most[1] ? most[0] : most[1];
    float right = most[2] > most[3] ? most[2] : most[3];
    return left > right ? left : right;
}

/* 2 to the power of each value less the largest, in WEIGHT_LIMIT-ths. The polynomial is that of 2^x
 * from -0.5 to 0.5, with an error of less than 4e-5. */
static int32_t weigh(const float *powers, size_t count, int16_t *weights) {
    float largest = largest_of(powers, count);
    int32_t total = 0;
    for (size_t n = 0; n < count; n++) {
        float power = powers[n] - largest, moved, two;
        power = power > SMALLEST_POWER ? power : SMALLEST_POWER;
        moved = power + TO_WHOLE;
        uint32_t bits, exponent;
        memcpy(&exponent, &moved, sizeof exponent);
        float x = power - (moved - TO_WHOLE);
        two = 1 + x * (0.693147181f +
                       x * (0.240226507f + x * (0.0555041087f + x * 0.00961812911f)));
        memcpy(&bits, &two, sizeof bits);
        bits += exponent << 23;
        memcpy(&two, &bits, sizeof two);
        moved = two * WEIGHT_LIMIT + TO_WHOLE;
        memcpy(&bits, &moved, sizeof bits);
        int16_t weight = (int16_t)(uint16_t)bits;
        weights[n] = weight;
        total += weight;
    }
    return total;
}

/* Of CW_ROWS queries what they take, at `into`. */
static void take(struct run *run, const struct head *head, const int16_t *queries,
                 const float *scales, size_t count, float *into) {
    size_t tokens = head->tokens, inputs = tokens + tokens % 2, width = run->net->shape.width;
    int32_t sums[CW_ROWS][CW_OUTPUTS], totals[CW_ROWS] = {0};
    float powers[CW_ROWS][MAX_TOKENS];
    int16_t weights[CW_ROWS * (MAX_TOKENS + CW_OUTPUTS)] = {0};
    for (size_t at = 0; at < tokens; at += CW_OUTPUTS) {
        run->net->multiply(queries, run->keys + at * HEAD, HEAD / 2, sums);
        for (size_t row = 0; row < count; row++)
            for (size_t n = 0; n < CW_OUTPUTS; n++)
                powers[row][at + n] = at + n < tokens ? (float)sums[row][n] *
                                                            (scales[row] * head->key_scales[at + n])
                                                      : NEVER;
    }
    for (size_t row = 0; row < count; row++) {
        int16_t own[MAX_TOKENS];
        totals[row] = weigh(powers[row], in_tables(tokens), own);
        memcpy(weights + row * inputs, own, inputs * sizeof *own);
    }
    for (size_t at = 0; at < HEAD; at += CW_OUTPUTS) {
        run->net->multiply(weights, run->weighed + at * inputs, inputs / 2, sums);
        for (size_t row = 0; row < count; row++)
            for (size_t n = 0; n < CW_OUTPUTS; n++)
                into[row * width + at + n] =
                    (float)sums[row][n] * (head->value_scales[at + n] / (float)totals[row]);
    }
}

/* From `run->wide`, which has queries, keys and values of each token, `run->mixed` for those from `from` to
 * `end`. */
void cw_attend(struct run *run, size_t tokens, size_t from, size_t end) {
    size_t width = run->net->shape.width, stride = 3 * width;
    for (size_t at = 0; at < width; at += HEAD) {
        struct head head = {.keys = run->wide + width + at,
                            .values = run->wide + 2 * width + at,
                            .stride = stride,
                            .tokens = tokens};
        make_tables(run, &head);
        for (size_t n = from; n < end; n += CW_ROWS) {
            int16_t queries[CW_ROWS * HEAD] = {0};
            float scales[CW_ROWS];
            size_t count = end - n < CW_ROWS ? end - n : CW_ROWS;
            for (size_t row = 0; row < count; row++)
                scales[row] = cw_round_row(run->wide + (n + row) * stride + at, HEAD, KEY_LIMIT,
                                           queries + row * HEAD) *
                              (LOG2_E / ROOT_OF_HEAD);
            take(run, &head, queries, scales, count, run->mixed + (n - from) * width + at);
        }
    }
}
