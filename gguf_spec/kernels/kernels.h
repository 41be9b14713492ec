// What products.cpp, attention.cpp and sampling.cpp offer to entry.cpp. They are compiled once for each instruction set (see ISA below).
#pragma once
#include "ggml_abi.h"
#include "sampling.h"

struct TileProduct;

// Products with one type of weights: y = W x for rows x.
//
// A row of activations is quantised once to the form that the product reads ("prepared"). A row of the result depends on its own
// activations only: not on the other rows, their number, the threads, or the columns computed beside it.
struct Product {
    int type;          // of the weights
    bool repacked;     // eight columns of W interleaved, as llama.cpp repacks them
    int64_t block;     // weights of a block; k is a multiple of it
    int64_t most;      // largest k
    int64_t columns;   // number of columns is a multiple of this
    int quantum;       // elements of a row that `prepare` takes at a time; parts of a row can be prepared by different threads
    // Bytes of a prepared row of k elements.
    size_t (*row_bytes)(int64_t k);
    // Prepare elements begin to end (multiples of quantum) of a row of k floats.
    void (*prepare)(const float * x, char * row, int64_t k, int64_t begin, int64_t end);
    // Columns c0 to c1 of n rows. w: the matrix, with `stride` bytes from one column to the next; c0 and c1 are multiples of 16, or
    // c1 is the last column. y[r][c] is written for each column c.
    void (*multiply)(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * const * rows, float * const * y, int n);
    const TileProduct * tiles; // the same product of several rows, or null
};

// The same product of several rows, with the same bits: in the tiles of AMX (tiles.cpp), or in registers on ARM (neon.h). It reads prepared
// rows in a form of its own, 16 of them side by side.
struct TileProduct {
    int least;   // rows from which it is faster
    int at_once; // rows that it reads at once: the last one is packed again up to a multiple of it
    // Bytes of 16 rows; they begin at a multiple of 64.
    size_t (*bytes_of_16)(int64_t k);
    // Write elements begin to end of a prepared row as row r of 16.
    void (*pack)(const char * row, char * to, int r, int64_t k, int64_t begin, int64_t end);
    // Bytes of work memory of a thread for n rows at most.
    size_t (*scratch_bytes)(int64_t n);
    // As Product::multiply, with packed rows; false, with nothing done, if the system lets this thread use no tiles.
    bool (*multiply)(const char * w, size_t stride, int64_t k, int64_t c0, int64_t c1, const char * rows, float * const * y, int64_t n, char * scratch);
};
// What tiles.cpp adds to a set's products; ends with a type of -1.
struct Tiled {
    int type;
    bool repacked;
    TileProduct tiles;
};
extern const Tiled tile_products[];
// Whether the system lets this thread use tiles; asks it.
bool may_use_tiles();

// All kernels for one instruction set.
struct Kernels {
    const char * name;
    const Product * products; // ends with a type of -1
    // Whether the kernel computes this FLASH_ATTN_EXT; a property of shapes and types other than the number of rows.
    bool (*takes_attention)(const Tensor * op);
    // Bytes of shared work memory for so many threads at most; called once before an operation.
    size_t (*attention_bytes)(int n_threads, const Tensor * op);
    // One thread's part of it; false, for all threads, if the work memory is too small.
    bool (*attention)(const Params * params, const Tensor * op);
    const Sampling * sampling;
};
