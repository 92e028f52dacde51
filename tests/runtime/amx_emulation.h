/* The tile instructions of AMX in plain C, so that a processor with AVX-512 bf16 but without AMX can test the library.

   Included before layers.c. A tile has 16 rows of 64 bytes, as the library configures all of them. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { uint8_t rows[16][64]; } Tile;
static __thread Tile tiles[8];

static void tile_load(int tile, const void *from, size_t step) {
    for (int row = 0; row < 16; row++) memcpy(tiles[tile].rows[row], (const char *)from + row * step, 64);
}

static void tile_store(int tile, void *to, size_t step) {
    for (int row = 0; row < 16; row++) memcpy((char *)to + row * step, tiles[tile].rows[row], 64);
}

/* Signed bytes of `left` times unsigned bytes of `right`, added to `sums`. */
static void tile_bytes(int sums, int left, int right) {
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            int32_t sum;
            memcpy(&sum, &tiles[sums].rows[row][4 * column], 4);
            for (int i = 0; i < 64; i++) sum += (int8_t)tiles[left].rows[row][i] * tiles[right].rows[i / 4][4 * column + i % 4];
            memcpy(&tiles[sums].rows[row][4 * column], &sum, 4);
        }
}

static float from_bfloat16(const uint8_t *bytes) {
    uint32_t bits = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 24;
    float number;
    memcpy(&number, &bits, 4);
    return number;
}

/* The same in bfloat16, with sums of floats. */
static void tile_halves(int sums, int left, int right) {
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 16; column++) {
            float sum;
            memcpy(&sum, &tiles[sums].rows[row][4 * column], 4);
            for (int i = 0; i < 32; i++)
                sum += from_bfloat16(&tiles[left].rows[row][2 * i]) * from_bfloat16(&tiles[right].rows[i / 2][4 * column + 2 * (i % 2)]);
            memcpy(&tiles[sums].rows[row][4 * column], &sum, 4);
        }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd tile_load
#define _tile_stored tile_store
#define _tile_zero(tile) memset(&tiles[tile], 0, sizeof(Tile))
#define _tile_dpbsud tile_bytes
#define _tile_dpbf16ps tile_halves
#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define syscall(...) 0 /* nobody need be asked for the registers */
