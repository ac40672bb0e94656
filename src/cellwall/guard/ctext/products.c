/* Products of matrices: in plain C, and with the two widths of registers that x86-64 has. All three
 * give the same sums, because whole numbers do. */
#include "products.h"

#include <string.h>

#include "passes.h"

/* Two weights are read as one number, the first of them in its low half: both kinds of processors
 * that Cellwall is built for have that order. */
static void plain_products(const int16_t *rows, const int16_t *table, size_t pairs,
                           int32_t sums[CW_ROWS][CW_OUTPUTS]) {
    for (size_t row = 0; row < CW_ROWS; row++, rows += 2 * pairs) {
        uint32_t added[CW_OUTPUTS] = {0};
        const int16_t *weights = table;
        for (size_t n = 0; n < pairs; n++, weights += 2 * CW_OUTPUTS) {
            int32_t both[CW_OUTPUTS], first = rows[2 * n], second = rows[2 * n + 1];
            memcpy(both, weights, sizeof both);
            for (size_t output = 0; output < CW_OUTPUTS; output++) {
                added[output] += (uint32_t)(first * (int16_t)both[output]);
                added[output] += (uint32_t)(second * (both[output] >> 16));
            }
        }
        memcpy(sums[row], added, sizeof added);
    }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static int32_t pair_at(const int16_t *inputs) {
    int32_t pair;
    memcpy(&pair, inputs, sizeof pair);
    return pair;
}

/* Eight sums and the weights stay in registers: with twelve, GCC moves some of them to memory. */
#define ROWS_OF_128 2

static void products_of_128(const int16_t *rows, const int16_t *table, size_t pairs,
                            int32_t sums[CW_ROWS][CW_OUTPUTS]) {
    for (size_t row = 0; row < CW_ROWS; row += ROWS_OF_128, rows += ROWS_OF_128 * 2 * pairs) {
        __m128i added[ROWS_OF_128][4];
        const __m128i *weights = (const __m128i *)table;
        for (size_t k = 0; k < ROWS_OF_128; k++)
            for (size_t part = 0; part < 4; part++)
                added[k][part] = _mm_setzero_si128();
        for (size_t n = 0; n < pairs; n++, weights += 4)
            for (size_t k = 0; k < ROWS_OF_128; k++) {
                __m128i by = _mm_set1_epi32(pair_at(rows + 2 * (k * pairs + n)));
                for (size_t part = 0; part < 4; part++) {
                    __m128i products = _mm_madd_epi16(_mm_loadu_si128(weights + part), by);
                    added[k][part] = _mm_add_epi32(added[k][part], products);
                }
            }
        memcpy(sums[row], added, sizeof added);
    }
}

__attribute__((target("avx2"))) static void
products_of_256(const int16_t *rows, const int16_t *table, size_t pairs,
                int32_t sums[CW_ROWS][CW_OUTPUTS]) {
    __m256i added[CW_ROWS][2];
    const __m256i *weights = (const __m256i *)table;
    for (size_t k = 0; k < CW_ROWS; k++)
        added[k][0] = added[k][1] = _mm256_setzero_si256();
    for (size_t n = 0; n < pairs; n++, weights += 2) {
        __m256i first = _mm256_loadu_si256(weights), second = _mm256_loadu_si256(weights + 1);
        for (size_t k = 0; k < CW_ROWS; k++) {
            __m256i by = _mm256_set1_epi32(pair_at(rows + 2 * (k * pairs + n)));
            added[k][0] = _mm256_add_epi32(added[k][0], _mm256_madd_epi16(first, by));
            added[k][1] = _mm256_add_epi32(added[k][1], _mm256_madd_epi16(second, by));
        }
    }
    memcpy(sums, added, sizeof added);
}

#define OSXSAVE (1u << 27)
#define AVX (1u << 28)
#define AVX2 (1u << 5)
#define WIDE_STATE 6u /* the kernel keeps the registers of 128 and of 256 bits */

/* `__builtin_cpu_supports` needs a part of the compiler's library that zig's does not have. */
static uint32_t widest(void) {
    uint32_t a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (OSXSAVE | AVX)) != (OSXSAVE | AVX))
        return BITS_128;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & WIDE_STATE) != WIDE_STATE || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return BITS_128;
    return b & AVX2 ? BITS_256 : BITS_128;
}

static products *const of_width[] = {plain_products, products_of_128, products_of_256};
#else
static uint32_t widest(void) { return PLAIN; }

static products *const of_width[] = {plain_products};
#endif

uint32_t cw_products_widest(void) { return widest(); }

products *cw_products(uint32_t most) { return of_width[most < widest() ? most : widest()]; }
