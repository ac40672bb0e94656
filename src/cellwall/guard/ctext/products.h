/* Products of matrices in whole numbers, which are the same whatever a processor does side by side.
 *
 * A table holds the weights of CW_OUTPUTS outputs together: for each two inputs, the two weights of
 * the first output, those of the second, and so on. Sums have 32 bits and wrap: the caller
 * keeps the products of a row below 2^31 in sum. */
#ifndef CELLWALL_PRODUCTS_H
#define CELLWALL_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#define CW_OUTPUTS 16 /* of one call */
#define CW_ROWS 4     /* of one call */

/* `rows`: CW_ROWS rows of 2 * `pairs` inputs; `table`: 2 * CW_OUTPUTS weights for each pair. */
typedef void products(const int16_t *rows, const int16_t *table, size_t pairs,
                      int32_t sums[CW_ROWS][CW_OUTPUTS]);

/* In the order of `Registers` in ctext/attention.py. */
enum registers { PLAIN, BITS_128, BITS_256 };

/* The widest that this processor has, but not wider than `most`. */
products *cw_products(uint32_t most);

/* Where the weight of an input and an output stands in the tables of `inputs` inputs. */
static inline size_t cw_weight_place(size_t inputs, size_t output, size_t input) {
    size_t table = output / CW_OUTPUTS * CW_OUTPUTS * inputs;
    return table + input / 2 * 2 * CW_OUTPUTS + output % CW_OUTPUTS * 2 + input % 2;
}

#endif
