/* x . W^T + bias for some rows of x, with W in 8 bits or in floats, and what follows it (the epilogue).

   W is stored in panels of 32 outputs, so that a product reads it once, from the start to the end. The instructions for
   8 bits multiply unsigned with signed numbers, so weights are stored as w + 128: (w + 128) . x = w . x + 128 . sum(x).
   The sum of each row of x is known when the row is quantized. */
#pragma once
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AMX_INT8__
#include "bytes_amx.h"
#else
#include "bytes_vnni.h"
#endif

#define BLOCK_ROWS 96 /* rows that are multiplied by a panel before their results are written */

typedef struct {
    int outputs, inputs;
    uint8_t *bytes;   /* (outputs / 32, inputs / 4, 32, 4), or NULL */
    float *floats;    /* (outputs / 32, inputs, 32), or NULL */
    float *scale;     /* (outputs,) of 8-bit weights */
    int32_t *offsets; /* (outputs,) 128 . sum of the weights, for inputs that are stored as x - 128 */
    float *bias;      /* (outputs,) */
    float *smooth;    /* (inputs,) or NULL: inputs are multiplied by it */
    int is_unsigned;  /* 8-bit inputs are 0 to 255 instead of -127 to 127 */
} Product;

/* Quantized rows. Each block of 96 has the order in which a product reads it. */
typedef struct {
    int8_t *bytes;
    int width;        /* bytes of a row */
    float *scale;     /* (rows,) */
    int32_t *offsets; /* (rows,) 128 . sum of the row */
} ByteRows;

/* Rows of floats; `width` is from one to the next. */
typedef struct {
    float *numbers;
    int width;
} FloatRows;

/* What happens to a result: it is activated and shifted, or added to what `out` has. */
typedef struct {
    FloatRows out;
    int is_added, is_activated;
    enum activation activation;
    float shift;
} Epilogue;

/* 16 inputs of a row; zeros behind its end. */
INLINE floats input(const float *row, const Product *product, int first) {
    const float *smooth = product->smooth;
    if (first + LANES <= product->inputs) {
        floats x = _mm512_loadu_ps(row + first);
        return smooth ? _mm512_mul_ps(x, _mm512_loadu_ps(smooth + first)) : x;
    }
    __mmask16 mask = lanes_below(product->inputs, first);
    floats x = _mm512_maskz_loadu_ps(mask, row + first);
    return smooth ? _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, smooth + first)) : x;
}

/* The largest absolute value of a row. */
INLINE float row_maximum(const float *row, const Product *product) {
    floats maximum = _mm512_setzero_ps();
    for (int i = 0; i < product->inputs; i += LANES) maximum = _mm512_max_ps(maximum, _mm512_abs_ps(input(row, product, i)));
    return _mm512_reduce_max_ps(maximum);
}

/* The rows in the block of a row. */
INLINE int block_rows(int rows, int row) {
    int rest = rows - row / BLOCK_ROWS * BLOCK_ROWS;
    return rest < BLOCK_ROWS ? rest : BLOCK_ROWS;
}

/* Quantize row `place` of `rows` rows. Unsigned numbers are stored as x - 128. */
static void quantize_row(const float *row, const Product *product, const ByteRows *to, int rows, int place) {
    int first = place / BLOCK_ROWS * BLOCK_ROWS, together = block_rows(rows, place), deep = round_up(product->inputs, DEEP);
    int8_t *block = to->bytes + (size_t)first * to->width;
    float maximum = fmaxf(row_maximum(row, product), 1e-20f), largest = product->is_unsigned ? 255 : 127;
    floats scale = _mm512_set1_ps(largest / maximum), shift = _mm512_set1_ps(product->is_unsigned ? -128 : 0);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < deep; i += LANES) {
        __m512i whole = _mm512_cvtps_epi32(_mm512_fmadd_ps(input(row, product, i), scale, shift));
        __m128i bytes = _mm512_cvtsepi32_epi8(whole); /* keeps what is not a number in 8 bits */
        sum = _mm512_add_epi32(sum, _mm512_cvtepi8_epi32(bytes));
        store_bytes(block, to->width, together, place - first, i, bytes);
    }
    to->scale[place] = maximum / largest;
    to->offsets[place] = 128 * _mm512_reduce_add_epi32(sum);
}

/* The sums of 32 columns of a row as results: scale and bias, then the epilogue. */
INLINE void write_row(const Product *product, const ByteRows *bytes, int row, int column, const int32_t *sums, const Epilogue *end, int is_activated, enum activation activation) {
    float *out = end->out.numbers + (size_t)row * end->out.width;
    for (int place = column; place < column + PANEL; place += LANES, sums += LANES) {
        __m512i whole = _mm512_load_si512(sums);
        floats result = _mm512_castsi512_ps(whole);
        if (product->bytes) {
            whole = _mm512_sub_epi32(whole, _mm512_set1_epi32(bytes->offsets[row]));
            if (product->is_unsigned) whole = _mm512_add_epi32(whole, _mm512_load_si512(product->offsets + place));
            floats scale = _mm512_mul_ps(_mm512_set1_ps(bytes->scale[row]), _mm512_load_ps(product->scale + place));
            result = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, _mm512_load_ps(product->bias + place));
        } else
            result = _mm512_add_ps(result, _mm512_load_ps(product->bias + place));
        if (end->is_added) result = _mm512_add_ps(result, _mm512_loadu_ps(out + place));
        if (is_activated) result = _mm512_add_ps(activate(activation, result), _mm512_set1_ps(end->shift));
        _mm512_storeu_ps(out + place, result);
    }
}

static void write_block(const Product *product, const ByteRows *bytes, int first, int rows, int column, const int32_t *sums, const Epilogue *end) {
#define WRITE(is_activated, activation)                                                                   \
    for (int r = 0; r < rows; r++)                                                                        \
        write_row(product, bytes, first + r, column, sums + r * PANEL, end, is_activated, activation)
    if (!end->is_activated) WRITE(0, RELU);
    else if (end->activation == GELU_NEW) WRITE(1, GELU_NEW);
    else if (end->activation == GELU) WRITE(1, GELU);
    else if (end->activation == RELU) WRITE(1, RELU);
    else WRITE(1, SILU);
#undef WRITE
}

INLINE int panel_count(const Product *product) { return round_up(product->outputs, PANEL) / PANEL; }

/* All rows times some panels. Products in 8 bits read `bytes`, the others `x`. */
static void multiply(const Product *product, const ByteRows *bytes, FloatRows x, int rows, int panel, int last_panel, Epilogue end) {
    _Alignas(64) int32_t sums[BLOCK_ROWS * PANEL];
    size_t deep = round_up(product->inputs, DEEP), inputs = product->inputs;
    if (product->bytes) start_bytes();
    for (; panel < last_panel; panel++)
        for (int first = 0; first < rows; first += BLOCK_ROWS) {
            int count = block_rows(rows, first);
            if (product->bytes)
                multiply_bytes(count, bytes->bytes + (size_t)first * bytes->width, bytes->width, product->bytes + panel * deep * PANEL, (int)deep, sums);
            else
                for (int group = 0; group < group_count(count); group++) {
                    int start = group_start(count, group);
                    multiply_floats(group_start(count, group + 1) - start, x.numbers + (size_t)(first + start) * x.width, x.width,
                                    product->floats + panel * inputs * PANEL, PANEL, product->inputs, (float *)sums + start * PANEL, PANEL);
                }
            write_block(product, bytes, first, count, panel * PANEL, sums, &end);
        }
    if (product->bytes) end_bytes();
}

static void *aligned(size_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, 64, bytes ? bytes : 64) ? NULL : memory;
}

/* A copy with zeros up to `width`; NULL without memory. */
static float *copy_floats(const float *from, int count, int width) {
    float *copy = aligned(sizeof(float) * width);
    if (!copy) return NULL;
    memset(copy, 0, sizeof(float) * width);
    if (from) memcpy(copy, from, sizeof(float) * count);
    return copy;
}

/* Store a matrix (outputs, inputs) in panels. `bytes` or `floats` is NULL. Returns 0, or -1 without memory. */
static int pack_product(Product *product, const int8_t *bytes, const float *floats) {
    int outputs = product->outputs, inputs = product->inputs, wide = round_up(outputs, PANEL), deep = round_up(inputs, DEEP);
    if (floats) {
        product->floats = aligned(sizeof(float) * wide * inputs);
        if (!product->floats) return -1;
        for (int n = 0; n < wide; n++)
            for (int k = 0; k < inputs; k++)
                product->floats[((size_t)(n / PANEL) * inputs + k) * PANEL + n % PANEL] = n < outputs ? floats[(size_t)n * inputs + k] : 0;
        return 0;
    }
    product->bytes = aligned((size_t)wide * deep);
    product->offsets = aligned(sizeof(int32_t) * wide);
    if (!product->bytes || !product->offsets) return -1;
    for (int n = 0; n < wide; n++) {
        int32_t sum = 0;
        for (int k = 0; k < deep; k++) {
            int value = n < outputs && k < inputs ? bytes[(size_t)n * inputs + k] : 0;
            sum += value;
            product->bytes[(((size_t)(n / PANEL) * (deep / 4) + k / 4) * PANEL + n % PANEL) * 4 + k % 4] = (uint8_t)(value + 128);
        }
        product->offsets[n] = 128 * sum;
    }
    return 0;
}

static void free_product(Product *product) {
    free(product->bytes), free(product->floats), free(product->scale), free(product->offsets), free(product->bias), free(product->smooth);
}
