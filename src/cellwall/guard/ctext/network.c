/* A small network over the vectors of a passage and of what stands around it.
 *
 * Input: the mean vector of the passage, that of its two neighbours, that of the rest of the text,
 * each scaled to one length, the squared cosines between the first and the other two, and the
 * numbers of its traits. One hidden layer. Each of its units adds up its inputs in their order, whatever is done side by side. */
#include <string.h>

#include "numbers.h"
#include "passes.h"

#define PARTS 3

static void mean_of(const float *sums, uint32_t dims, float pieces, float scale, float *mean) {
    float factor = pieces >= 1 ? scale / pieces : 0;
    for (uint32_t n = 0; n < dims; n++)
        mean[n] = sums[n] * factor;
}

/* The square of the cosine, with its sign. */
static float cosine(double both, double one, double other) {
    double size = one * other;
    return size > 1e-9 ? (float)(both * (both < 0 ? -both : both) / size) : 0;
}

#define SHORT 1e-3 /* a vector of nothing is not scaled up */

/* `square`: of the length that it has. */
static void scale_to(float length, double square, float *vector, uint32_t dims) {
    float factor = (float)(length / (root_of(square) + SHORT));
    for (uint32_t n = 0; n < dims; n++)
        vector[n] *= factor;
}

static void add_scaled(float *hidden, const float *weights, float by, uint32_t size) {
    for (uint32_t n = 0; n < size; n++)
        hidden[n] += by * weights[n];
}

struct around {
    float total[CW_MAX_DIMS];
    float pieces;
};

/* Of one passage: three vectors and two cosines. */
struct inputs {
    float values[PARTS * CW_MAX_DIMS + PARTS - 1];
    size_t count;
};

static void find_inputs(const struct network *net, const struct around *text, const float *sums,
                        const uint32_t *pieces, size_t count, size_t at, struct inputs *inputs) {
    uint32_t dims = net->dims;
    float beside[CW_MAX_DIMS] = {0}, rest[CW_MAX_DIMS], *means = inputs->values;
    const float *own = sums + at * dims;
    float near = 0;
    for (int step = -1; step <= 1; step += 2) {
        if ((step < 0 && at == 0) || (step > 0 && at + 1 >= count))
            continue;
        size_t other = step < 0 ? at - 1 : at + 1;
        add_scaled(beside, sums + other * dims, 1, dims);
        near += (float)pieces[other];
    }
    for (uint32_t n = 0; n < dims; n++)
        rest[n] = text->total[n] - own[n];
    mean_of(own, dims, (float)pieces[at], net->scale, means);
    mean_of(beside, dims, near, net->scale, means + dims);
    mean_of(rest, dims, text->pieces - (float)pieces[at], net->scale, means + 2 * (size_t)dims);
    double both[PARTS] = {0}, squares[PARTS] = {0};
    for (uint32_t n = 0; n < dims; n++)
        for (size_t part = 0; part < PARTS; part++) {
            double value = means[part * dims + n];
            squares[part] += value * value;
            both[part] += means[n] * value;
        }
    inputs->count = PARTS * (size_t)dims;
    for (size_t part = 1; part < PARTS; part++)
        inputs->values[inputs->count++] = cosine(both[part], squares[0], squares[part]);
    for (size_t part = 0; part < PARTS; part++)
        scale_to(net->length, squares[part], means + part * dims, dims);
}

/* So many units are kept in registers while all inputs are gone through. */
#define LANES 4
#define WIDE 12
#define UNITS (LANES * WIDE)
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static void add_units(const struct network *net, const struct inputs *inputs, uint32_t unit,
                      float *hidden) {
    lanes sums[WIDE], weights;
    memcpy(sums, hidden + unit, sizeof sums);
    const float *row = net->first + unit;
    for (size_t n = 0; n < inputs->count; n++, row += net->hidden) {
        float value = inputs->values[n];
        lanes by = {value, value, value, value};
        for (int lane = 0; lane < WIDE; lane++) {
            memcpy(&weights, row + lane * LANES, sizeof weights);
            sums[lane] += by * weights;
        }
    }
    memcpy(hidden + unit, sums, sizeof sums);
}

static void add_inputs(const struct network *net, const struct inputs *inputs, float *hidden) {
    uint32_t unit = 0;
    for (; unit + UNITS <= net->hidden; unit += UNITS)
        add_units(net, inputs, unit, hidden);
    for (; unit < net->hidden; unit++)
        for (size_t n = 0; n < inputs->count; n++)
            hidden[unit] += inputs->values[n] * net->first[n * net->hidden + unit];
}

static float score(const struct network *net, const struct inputs *inputs, const uint32_t *traits,
                   size_t trait_count) {
    float hidden[CW_MAX_HIDDEN];
    uint32_t size = net->hidden;
    memcpy(hidden, net->bias, size * sizeof *hidden);
    add_inputs(net, inputs, hidden);
    for (size_t n = 0; n < trait_count; n++)
        if (traits[n] < net->traits)
            add_scaled(hidden, net->of_traits + (size_t)traits[n] * size, 1, size);
    float total = net->base;
    for (uint32_t n = 0; n < size; n++)
        total += hidden[n] > 0 ? hidden[n] * net->last[n] : 0;
    return total;
}

/* The scores of some passages of a text. `sums` and `pieces` are those of all passages, `ends` says
 * where the traits of each chosen passage end. Returns 0 if the network is too large. */
int cw_network_scores(const struct network *net, const float *sums, const uint32_t *pieces,
                      size_t count, const uint64_t *chosen, size_t chosen_count,
                      const uint32_t *traits, const uint64_t *ends, float *scores) {
    if (net->dims > CW_MAX_DIMS || net->hidden > CW_MAX_HIDDEN)
        return 0;
    struct around text = {.pieces = 0};
    for (size_t n = 0; n < count; n++) {
        add_scaled(text.total, sums + n * net->dims, 1, net->dims);
        text.pieces += (float)pieces[n];
    }
    size_t begin = 0;
    for (size_t n = 0; n < chosen_count; n++) {
        scores[n] = net->base;
        if (chosen[n] < count && ends[n] >= begin) {
            struct inputs inputs;
            find_inputs(net, &text, sums, pieces, count, chosen[n], &inputs);
            scores[n] = score(net, &inputs, traits + begin, ends[n] - begin);
        }
        begin = ends[n];
    }
    return 1;
}
