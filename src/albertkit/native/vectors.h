/* Vectors of 16 numbers (AVX-512), and the functions that the layers need on them.

   Every sum has one order, whatever the batch: a text has the same bits alone and among others. */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef __m512 floats;

INLINE int round_up(int count, int step) { return (count + step - 1) / step * step; }

/* The mask of the lanes below `count`, counted from lane `first`. */
INLINE __mmask16 lanes_below(int count, int first) {
    int rest = count - first;
    return rest >= LANES ? 0xFFFF : rest <= 0 ? 0 : (__mmask16)((1u << rest) - 1);
}

#define LOG2_E 1.44269504f

/* 2^x with a relative error below 2e-7; 0 below -150. */
INLINE floats power_of_two(floats x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-151.0f));
    floats whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    floats rest = _mm512_sub_ps(x, whole);
    floats sum = _mm512_set1_ps(1.535336188319500e-4f); /* the series of 2^x on [-0.5, 0.5] (Cephes, exp2f) */
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.339887440266574e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(9.618437357674640e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.550332471162809e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(2.402264791363012e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(6.931472028550421e-1f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f)), whole);
}

/* 1 / x: an estimate of 14 bits and one step of Newton. */
INLINE floats inverse(floats x) {
    floats guess = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0f)));
}

/* x / (1 + 2^y). */
INLINE floats gated(floats x, floats y) {
    y = _mm512_min_ps(y, _mm512_set1_ps(120.0f));
    return _mm512_mul_ps(x, inverse(_mm512_add_ps(_mm512_set1_ps(1.0f), power_of_two(y))));
}

/* erf(x) as 1 - t(...)e^-x^2 (Abramowitz and Stegun 7.1.26), with an error below 2e-7. */
INLINE floats error_function(floats x) {
    floats size = _mm512_abs_ps(x);
    floats t = inverse(_mm512_fmadd_ps(size, _mm512_set1_ps(0.3275911f), _mm512_set1_ps(1.0f)));
    floats sum = _mm512_set1_ps(1.061405429f);
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-1.453152027f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(1.421413741f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(-0.284496736f));
    sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(0.254829592f));
    floats fall = power_of_two(_mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-LOG2_E)));
    floats result = _mm512_fnmadd_ps(_mm512_mul_ps(sum, t), fall, _mm512_set1_ps(1.0f));
    __m512i sign = _mm512_and_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_or_epi32(_mm512_castps_si512(result), sign));
}

enum activation { GELU_NEW, GELU, RELU, SILU };

INLINE floats activate(enum activation kind, floats x) {
    if (kind == RELU) return _mm512_max_ps(x, _mm512_setzero_ps());
    if (kind == SILU) return gated(x, _mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E)));
    if (kind == GELU) {
        floats half = _mm512_mul_ps(x, _mm512_set1_ps(0.5f));
        return _mm512_fmadd_ps(half, error_function(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f))), half);
    }
    /* 0.5 x (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3) */
    floats cube = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-LOG2_E * 0.0713548162726f), _mm512_set1_ps(-LOG2_E * 1.59576912161f));
    return gated(x, _mm512_mul_ps(x, cube));
}

/* LayerNorm of a row, in place. */
static void norm_row(float *row, float *const *norm, int size, float eps) {
    floats sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
    for (int i = 0; i < size; i += LANES) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(lanes_below(size, i), row + i));
    floats mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)size);
    for (int i = 0; i < size; i += LANES) {
        __mmask16 mask = lanes_below(size, i);
        floats x = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, row + i), mean);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    floats scale = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + eps));
    for (int i = 0; i < size; i += LANES) {
        floats x = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(row + i), mean), scale);
        _mm512_storeu_ps(row + i, _mm512_fmadd_ps(x, _mm512_loadu_ps(norm[0] + i), _mm512_loadu_ps(norm[1] + i)));
    }
}
