/* Square roots, without the C library's mathematics, which is another library. */
#ifndef CELLWALL_NUMBERS_H
#define CELLWALL_NUMBERS_H

#include <stdint.h>
#include <string.h>

/* By Newton's method, from half of the exponent. */
static inline double root_of(double value) {
    uint64_t bits;
    double root;
    if (value <= 0)
        return 0;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits >> 1) + ((uint64_t)1023 << 51);
    memcpy(&root, &bits, sizeof root);
    for (int step = 0; step < 5; step++)
        root = 0.5 * (root + value / root);
    return root;
}

#endif
