/* A small network over the vectors of a passage and of what stands around it.
 *
 * Input: the mean vector of the passage, that of its two neighbours, that of the rest of the text,
 * the squared cosines between the first and the other two, and the numbers of its traits. One hidden layer.
 * The inner loops go over the hidden layer, so that a compiler makes them wide without changing the
 * order of additions. */
#include "passes.h"

#include <string.h>

#define PARTS 3

static void mean_of(const float *sums, uint32_t dims, float pieces, float scale, float *mean) {
    float factor = pieces >= 1 ? scale / pieces : 0;
    for (uint32_t n = 0; n < dims; n++)
        mean[n] = sums[n] * factor;
}

/* The square of the cosine, with its sign: no square root, which would need another library. */
static float cosine(const float *left, const float *right, uint32_t dims) {
    double both = 0, one = 0, other = 0;
    for (uint32_t n = 0; n < dims; n++) {
        both += (double)left[n] * right[n];
        one += (double)left[n] * left[n];
        other += (double)right[n] * right[n];
    }
    double size = one * other;
    return size > 1e-9 ? (float)(both * (both < 0 ? -both : both) / size) : 0;
}

static void add_scaled(float *hidden, const float *weights, float by, uint32_t size) {
    for (uint32_t n = 0; n < size; n++)
        hidden[n] += by * weights[n];
}

struct around {
    float total[CW_MAX_DIMS];
    float pieces;
};

static float score(const struct network *net, const struct around *text, const float *sums,
                   const uint32_t *pieces, size_t count, size_t at, const uint32_t *traits,
                   size_t trait_count) {
    uint32_t dims = net->dims, size = net->hidden;
    float means[PARTS][CW_MAX_DIMS], beside[CW_MAX_DIMS] = {0}, rest[CW_MAX_DIMS];
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
    mean_of(own, dims, (float)pieces[at], net->scale, means[0]);
    mean_of(beside, dims, near, net->scale, means[1]);
    mean_of(rest, dims, text->pieces - (float)pieces[at], net->scale, means[2]);
    float hidden[CW_MAX_HIDDEN];
    memcpy(hidden, net->bias, size * sizeof *hidden);
    const float *row = net->first;
    for (int part = 0; part < PARTS; part++)
        for (uint32_t n = 0; n < dims; n++, row += size)
            add_scaled(hidden, row, means[part][n], size);
    for (int part = 1; part < PARTS; part++, row += size)
        add_scaled(hidden, row, cosine(means[0], means[part], dims), size);
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
        if (chosen[n] < count && ends[n] >= begin)
            scores[n] = score(net, &text, sums, pieces, count, chosen[n], traits + begin,
                              ends[n] - begin);
        begin = ends[n];
    }
    return 1;
}
