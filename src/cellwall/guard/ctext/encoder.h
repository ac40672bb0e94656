/* A transformer encoder over a few tokens: its shape, its weights as they are held, and the numbers of
 * one run. */
#ifndef CELLWALL_ENCODER_H
#define CELLWALL_ENCODER_H

#include "passes.h"
#include "products.h"

#define MAX_WIDTH 256
#define MAX_INPUTS 512 /* of a matrix: 512 products of 15 and of 7 bits stay within 31 bits */
#define MAX_HIDDEN 512
#define MAX_LAYERS 8
#define MAX_TOKENS 128
#define HEAD 32
#define MATRICES 4 /* of a layer */
#define INPUT_LIMIT 32767

/* Numbers side by side: compilers leave a loop over floats as it is where they cannot tell that its
 * arrays are apart. */
#define LANES 4
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t whole_lanes __attribute__((vector_size(LANES * sizeof(int32_t))));

#define SMALLEST 1e-30f /* a row of less is a row of zeros */
#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u
#define TO_WHOLE 12582912.0f /* added to a small number: its nearest whole one is in the low bits */

/* Weights of 8 bits, held in 16; those of the first matrix have 16. */
struct matrix {
    int16_t *table;             /* as products.h has it */
    const float *scales, *bias; /* of each output */
    uint32_t inputs, outputs;
};

struct layer {
    struct matrix joined, out, wider, narrower; /* queries, keys and values are one matrix */
};

struct attention {
    struct attention_shape shape;
    products *multiply;
    struct matrix first, hidden;
    struct layer layers[MAX_LAYERS];
    const float *places, *sides;                            /* own or not */
    const float *first_gain, *first_shift, *gain, *shift;   /* of the first and last normalisation */
    const float *last;                                      /* and the bias behind it */
    float *floats;
    int16_t *tables;
};

/* Rows that are taken together are at most CW_ROWS more than there are tokens. */
#define ROOM (MAX_TOKENS + CW_ROWS)

/* Of one window after the other. */
struct run {
    const struct attention *net;
    float *values, *wide, *mixed; /* a row for each token: what the layers add to, and what they make */
    int16_t *rows;                /* inputs of a matrix in whole numbers */
    float scales[ROOM];           /* of each of these rows */
    int16_t *keys, *weighed;      /* tables of one head */
};

/* encoder.c */
float cw_round_row(const float *values, size_t count, float limit, int16_t *whole);
void cw_multiply(struct run *run, const struct matrix *by, size_t count, float *into);
void cw_normalise(const float *values, size_t width, float *into);
void cw_encode(struct run *run, size_t tokens, size_t own, size_t own_end);

/* heads.c */
void cw_attend(struct run *run, size_t tokens, size_t from, size_t end);

#endif
