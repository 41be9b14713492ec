// The sampler: from rows of logits to tokens, with the bits of the rule in gguf_spec/sampling. sampling/native.py has the same structures.
#pragma once
#include <cstdint>

// Limits of the filters that a near tie moves.
struct Limits {
    double top_p;     // 1: none
    double log_min_p; // minus infinity: none
    double typical_p; // 1: none
};

// The options of a request.
struct Chain {
    double temperature;
    double sigma;                // of top-n-sigma; 0: none
    Limits usual, tight, loose;  // `tight` and `loose` are moved by the noise
    double xtc_probability;      // 0: none
    double xtc_threshold;
    double noise;                // largest change of logits in a near tie, penalties included
    double frequency, presence;  // penalties
    float repeat;
    int32_t penalises;           // whether there are penalties
    int32_t last_n;              // tokens that penalties consider; below 0: all
    int32_t is_greedy;
    int32_t top_k;               // 0: none
    int32_t n_top;               // likeliest tokens to name; below 0: no log-probabilities
    int32_t n_biases, n_ends;
    const int32_t * bias_ids;
    const float * biases;
    const int32_t * ends;        // tokens that end a generation
    int32_t bans_ends;           // whether they are forbidden
};

// The rows of a draft: row i follows the text and the first i tokens of the draft.
struct Rows {
    const Chain * chain;
    float * logits;              // n_rows rows of n_vocab; unchanged behind the call
    int64_t n_vocab;
    int32_t n_rows;              // one more than tokens of the draft
    int32_t n_history;
    const int32_t * history;     // the last tokens of the text, as many as penalties consider
    const int32_t * draft;
    const uint32_t * keys;       // five random numbers for each row
    const int32_t * dry_ids;     // what DRY subtracts in the first row
    const double * dry;
    int32_t n_dry;
    int32_t checks;              // whether near ties are looked for
    const uint8_t * const * masks; // a bit for each token that the grammar allows, of each row; null: no grammar
    char * work;                 // gguf_spec_sampling_bytes(n_vocab) bytes, zero at first
    // Results: up to the first token that is not the draft's.
    int32_t n_tokens;            // -1: a row has no finite logit
    int32_t * tokens;
    uint8_t * near_ties;
    double * logprobs;
    int32_t * n_named;           // likeliest tokens of each row
    int32_t * named;             // n_top of each row
    double * named_logprobs;
};

// Texts as a tree of their bytes, in preorder.
struct Tree {
    int64_t n_nodes;
    uint8_t * bytes;             // of each node
    int32_t * depths;            // of each node; 1: first byte of a text
    int32_t * nexts;             // first node that is not below this one
    int32_t * longests;          // of each node, bytes of the longest text that passes it
    int32_t * firsts;            // n_nodes + 1: first one of the texts that end at a node
};

// The states of an automaton of bytes behind the nodes of a tree.
struct Walk {
    const Tree * tree;
    const int32_t * tokens;      // of each text of the tree
    const int32_t * const * rows; // the next state by byte, of each state; below 0: not allowed. Null: not known
    int64_t at;                  // node to go on from
    int32_t longer_than;         // texts of so many bytes may be left out
    int32_t * states;            // state at each depth; states[0] is the start
    uint8_t * used;              // set for each state whose row is used
    uint8_t * mask;              // a bit is set for each token that the automaton accepts; zero at first
};

struct Sampling {
    void (*sample)(Rows & rows);
    // Fill the arrays, which have room for one node more than there are bytes, from sorted texts, each given by its end.
    void (*grow)(Tree & tree, const uint8_t * texts, const int64_t * ends, int64_t n_texts);
    // Go on to the end, or to a state whose row is not known; return that, or -1.
    int32_t (*walk)(Walk & walk);
    // For tests: exp (0) or log (1) of each value, or their sum (2) in the first one.
    void (*compute)(int what, double * values, int64_t n);
};
