/* Products of bfloat16 with AVX-512 bf16, in tiles of up to 12 rows times 32 columns. */
#pragma once
#include "products.h"

#define HALF_ROWS MOST_ROWS /* rows of x that are multiplied at once */

/* sums += weights . x, two products for each lane; assembly for the same reason as `MULTIPLY_BYTES`. */
#define MULTIPLY_HALVES(sums, weights, x) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(x))

/* x (rows, inputs) by weights (inputs / 2, columns, 2), into the first 32 columns of `out` (rows, columns). */
INLINE void half_tile(int rows, const uint16_t *x, int inputs, const float *weights, int columns, float *out) {
#define START(r) floats left##r = _mm512_setzero_ps(), right##r = left##r;
    EACH_ROW(START)
    for (int i = 0; i < inputs; i += 2, weights += columns) {
        floats left = _mm512_loadu_ps(weights), right = _mm512_loadu_ps(weights + LANES);
#define STEP(r)                                                                      \
    if (r < rows) {                                                                  \
        __m512i pair = _mm512_set1_epi32(*(const int32_t *)(x + (size_t)r * inputs + i)); \
        MULTIPLY_HALVES(left##r, left, pair);                                        \
        MULTIPLY_HALVES(right##r, right, pair);                                      \
    }
        EACH_ROW(STEP)
#undef STEP
    }
#define STORE(r)                                                                     \
    if (r < rows) {                                                                  \
        _mm512_storeu_ps(out + (size_t)r * columns, left##r);                        \
        _mm512_storeu_ps(out + (size_t)r * columns + LANES, right##r);               \
    }
    EACH_ROW(STORE)
#undef STORE
#undef START
}

/* x (rows, inputs) by weights (inputs / 2, columns, 2), into `out` (rows, columns). Columns are a multiple of 32. */
static void multiply_halves(int rows, const uint16_t *x, int inputs, const float *weights, int columns, float *out) {
    for (int column = 0; column < columns; column += PANEL) {
#define CASE(r) case r + 1: half_tile(r + 1, x, inputs, weights + column, columns, out + column); break;
        switch (rows) { EACH_ROW(CASE) }
#undef CASE
    }
}
