// args.h: the step buffer of a context and the push constants of the kernels with state, for C++ and GLSL.
//
// The step buffer, one per context, is bound wherever a kernel needs the rows of the pass:
//   word 0             StepState
//   word kChainWord    counters of chained dispatches (chain.glsl)
//   word kHistoryWord  history [kHistory]: the token at position p is at word kHistoryWord + p mod kHistory. The tokens
//                      of a pass are there before it runs: row i runs history[position + token_shift + i]. Rejected
//                      drafts are overwritten, because tokens are found by position.
//   word kBiasWord     bias [kMaxBias], of which SampleArgs::n_bias are in use: id and the bits of a float. Ids ascend;
//                      those of one id are in the order in which they are added
//   word kAllowedWord  allowed [n_vocab / 32]: the ids that a row is sampled again from, bit id mod 32 of word id / 32
//
// A pass is one run of a tape over n_row rows. step_open opens a trunk pass, step_mtp an MTP pass over the rows just
// committed, step_next a pass of one row with the token just sampled. step_accept ends a trunk pass: it compares drafts
// with sampled tokens and emits tokens. n_row = 0: a stop id or the limit was reached and every kernel returns at once.
#ifndef AUSPEX_SHADERS_ARGS_H
#define AUSPEX_SHADERS_ARGS_H

#include "chain_args.h"

AUSPEX_SHARED_BEGIN

AUSPEX_CONST uint kHistory = 8192;      // tokens kept by position; a power of two
AUSPEX_CONST uint kHistoryWord = 1024;  // where they begin in the step buffer
AUSPEX_CONST uint kBiasWord = kHistoryWord + kHistory;
AUSPEX_CONST uint kMaxBias = 1024;
AUSPEX_CONST uint kAllowedWord = kBiasWord + 2 * kMaxBias;
AUSPEX_CONST uint kMaxSample = 16;      // rows of logits that one pass samples from
AUSPEX_CONST uint kMaxStop = 16;        // ids that end a text
AUSPEX_CONST uint kConvRing = 16;       // rows of raw convolution input kept by position; >= 3 + kMaxRows

// Chunks of positions for attention: a pure function of the absolute position, so that a row's sums do not depend on
// the other rows of its step. The first 128 chunks hold 128 positions, the next 128 hold 256, then 512, and so on:
// chunk c of octave o = c / 128 begins at 16384 (2^o - 1) + (c & 127) 128 2^o. With a window of at most 16384 every
// chunk holds 128.
AUSPEX_CONST uint kChunk = 128;
AUSPEX_CONST uint kChunkOctave = 128;
// Segments of positions for attention of prompts on matrix units, likewise: 8 of 2048, 8 of 4096, and so on; with such
// a window all of 2048. A row's sums start anew in each segment and are joined in order, so that neither the rows of a
// pass nor how many workgroups share a row's keys decide its bits. Multiples of the keys that a kernel takes at a time.
AUSPEX_CONST uint kSegment = 2048;
AUSPEX_CONST uint kSegmentOctave = 8;
AUSPEX_CONST uint kTileKeys = 32;      // keys of a block of attend_tile.comp and attend_shared.comp
AUSPEX_CONST uint kAttendRound = 128;  // queries of a round of attention: a multiple of this

// How the next token is sampled: the fields of the public Sampling by their names, except the seed and the biases.
// device_loop.cpp copies each of them. A temperature of 0 is greedy.
#define AUSPEX_SAMPLING(X)      \
    X(float, temperature)       \
    X(uint, top_k)              \
    X(float, top_p)             \
    X(float, min_p)             \
    X(float, repeat_penalty)    \
    X(float, frequency_penalty) \
    X(float, presence_penalty)  \
    X(uint, penalty_window)

struct SampleArgs {
#define AUSPEX_FIELD(type, name) type name;
    AUSPEX_SAMPLING(AUSPEX_FIELD)
#undef AUSPEX_FIELD
    uint seed_lo;
    uint seed_hi;
    uint n_bias;  // at kBiasWord
    uint spare;   // a new field of the list takes the place of a spare word
};

struct StepState {
    // The pass that runs now.
    uint n_row;        // 0: nothing to do
    uint position;     // KV row of row 0: its index in the timeline
    uint first_logit;  // logits row j belongs to row first_logit + j
    uint tentative;    // 1: DeltaNet rows leave terms and the state stays; 0: rows are committed at once
    // DeltaNet: how many terms of the previous trunk pass were committed and are applied by this one.
    uint n_commit;
    uint parity;       // this pass writes half `parity` of the terms and reads half 1 - parity
    uint token_shift;  // row i runs the token at position + token_shift + i
    uint hidden_from;  // MTP: row i is fed from kept hidden row hidden_from + i
    // The cycle.
    uint base;      // position of the first row of the last trunk pass whose logits are wanted
    uint n_draft;   // drafted tokens in that pass (rows 1 .. n_draft)
    uint n_accept;  // of those, accepted: rows 0 .. n_accept are committed
    uint done;      // 1: a stop id or the limit was reached
    uint limit;     // no token is sampled for a position >= limit
    uint n_stop;
    uint ring_write;           // tokens emitted so far
    uint cycle;                // trunk passes so far
    uint base_row;             // that row's index in its pass: 0 unless a prompt was run
    uint first_key;            // keys before this position were never written and are masked; 0 in a trunk pass
    uint mtp_first_key;        // the same for MTP passes, kept from the host's last request for one
    uint stop[kMaxStop];       // ids that end the text
    uint sampled[kMaxSample];  // sampled[j]: the token sampled after row first_logit + j
    SampleArgs sampling;
    // Several MTP blocks: the pass over committed rows that each of them runs.
    uint true_row, true_position, true_from;
    // Synthetic acceptance, for measuring: unless 0, a draft is accepted with this probability, whatever its token.
    float synth_accept;
    uint synth_seed;
    uint rotary_shift;  // row i is rotated for position + rotary_shift + i, modulo 2^32
};
AUSPEX_CONST uint kStateWords = 69;  // words of StepState in use

// A host request for a trunk or MTP pass; the tokens follow the struct in the request buffer.
struct StepRequest {
    uint n_row;
    uint position;
    uint first_logit;
    uint tentative;
    uint n_commit;  // trunk: rows of the previous tentative pass to apply
    uint token_shift;
    uint n_id;   // tokens that follow; written to history[position + token_shift + i]
    uint flags;  // kRequest...
    uint hidden_from;
    uint n_draft;
    uint limit;
    uint n_stop;
    uint stop[kMaxStop];
    SampleArgs sampling;
    uint first_key;      // MTP: see StepState
    float synth_accept;  // see StepState
    uint synth_seed;
    uint rotary_shift;  // see StepState
};
AUSPEX_CONST uint kRequestWords = 44;
AUSPEX_CONST uint kRequestTrunk = 1;     // a trunk pass: takes n_commit, flips parity, counts a cycle
AUSPEX_CONST uint kRequestSampling = 2;  // take sampling, stop ids and limit; clears done
AUSPEX_CONST uint kRequestSeedRing = 4;  // restart ring_write at 0
AUSPEX_CONST uint kRequestNext = 8;      // the pass after step_accept: of the request, only the tokens, its drafts
AUSPEX_CONST uint kRequestDrafted = 16;  // the draft block made the drafts, which end before an unlikely one
AUSPEX_CONST uint kRequestBias = 32;     // opens no pass: what follows are n_id words for kBiasWord

// An entry of the token ring (host-visible, 16 bytes, one store; entry s is at s mod its length).
struct RingEntry {
    uint sequence;  // s + 1: equal to what the reader waits for once the entry is written
    uint token;
    uint position;  // of the token
    uint info;  // kRingLast: last of its pass; kRingDone: end of the text; bits 8..15: n_draft; bits 16..23: n_accept
};

AUSPEX_CONST uint kRingLast = 1;  // bits of RingEntry::info
AUSPEX_CONST uint kRingDone = 2;

struct StepArgs {
    uint mode;         // step_open: 0 host request, 1 continue after step_accept
    uint n_draft;      // step_open mode 1: drafts in the history now; step_accept: ignored
    uint token_shift;  // step_mtp
    uint ring_length;  // step_accept
    // step_open, step_next: drafts end before the first that is less likely than this (sample_share.comp).
    uint n_part;  // 0: they do not
    float min_probability;
    uint guess;  // step_next: which of the cycle's drafts was sampled
};

struct ShareArgs {
    uint n_vocab;
    uint n_part;  // slices of the vocabulary
    uint guess;
};
AUSPEX_CONST uint kShareSlice = 8192;  // ids that a workgroup of sample_share adds up

struct ResampleArgs {
    uint mode;    // 0: before the sampling kernels, 1: after them
    uint row;     // of the last trunk pass
    uint n_word;  // of allowed ids
    uint ring_length;
};

// ------------------------------------------------------------------------------------- DeltaNet
// Offsets and strides count floats.
struct DeltaArgs {
    uint n_head_k;
    uint n_head_v;
    uint grouped;   // 1: value head h uses key head h / (n_head_v / n_head_k); 0: h mod n_head_k
    float eps;      // of the gated norm
    uint u_offset;  // raw convolution inputs [row, conv_dim] of this pass
    uint u_stride;
    uint z_offset;  // [row, n_head_v * d_val]
    uint z_stride;
    uint b_offset;  // [row, n_head_v] before the sigmoid
    uint b_stride;
    uint a_offset;  // [row, n_head_v]
    uint a_stride;
    uint out_offset;  // [row, n_head_v * d_val]
    uint out_stride;
    ChainArgs chain;  // delta_step
};

// ------------------------------------------------------------------------------------ attention
struct AttendArgs {
    uint n_head;
    uint n_head_kv;
    uint n_rot;   // pairs (i, i + n_rot/2); 0: no rotation
    float scale;  // of the scores
    float eps;    // of the q and k norms
    uint flags;   // kAttend...
    uint window;  // 0: all
    uint sinks;
    uint ring;  // rows of the ring, at least 128 and window + n_row: slot(p) = p < sinks ? p : sinks + (p - sinks) mod
                // ring
    uint capacity;  // slots per head: sinks + ring
    uint q_offset;  // [row, n_head, d_head], or [row, n_head, 2, d_head] when interleaved
    uint q_stride;
    uint k_offset;  // [row, n_head_kv, d_head]
    uint k_stride;
    uint v_offset;
    uint v_stride;
    uint gate_offset;  // per head: [row, n_head]
    uint gate_stride;
    uint out_offset;  // [row, n_head, d_head]
    uint out_stride;
    float rope_scale;   // multiplies cos and sin; 1
    uint part_stride;   // partial results: rows per chunk, at least n_row * n_head. Prompts: queries of a kv head for
                        // which there is room, a multiple of the kernel's tile
    uint count_stride;  // attend_mma: counters of a query tile: sets of 16 chunks that it can see at most, and one
    uint n_part;        // prompts: partials of a kv head for which there is room, a multiple of kAttendRound
    uint round;         // prompts: which of the rounds
    ChainArgs chain;    // attend_mma
};
AUSPEX_CONST uint kAttendQNorm = 1;
AUSPEX_CONST uint kAttendKNorm = 2;
AUSPEX_CONST uint kAttendInterleaved = 4;  // the gate follows each query
AUSPEX_CONST uint kAttendPerHead = 8;      // one gate value per head

// Queries that kv_append leaves: specialization constant QUERIES.
AUSPEX_CONST uint kQueriesNone = 0;
AUSPEX_CONST uint kQueriesFloat = 1;  // for attend_rows: f32 [n_head_kv, part_stride / 64, D_HEAD, 64]
AUSPEX_CONST uint kQueriesHalf = 2;   // for attend_tile: f16 [n_head_kv, part_stride / 16, D_HEAD / 16, 32, 8]
AUSPEX_CONST uint kQueriesRows = 3;   // for attend_shared: f16 [n_head_kv, part_stride, D_HEAD]

// Formats of keys and values: a specialization constant of every attention kernel; kv_formats.glsl.
AUSPEX_CONST uint kKvF16 = 0;
AUSPEX_CONST uint kKvQ8 = 1;
AUSPEX_CONST uint kKvQ40 = 2;
AUSPEX_CONST uint kKvQ41 = 3;

// ------------------------------------------------------------------------------------- sampling
struct SamplePassArgs {
    uint n_vocab;
    uint logits_offset;
    uint logits_stride;
    uint n_part;  // slices of the vocabulary
    uint d_part;  // ids per slice
    uint chosen;  // sample_bias: 1: the logits belong to the ids of a draft vocabulary
};
AUSPEX_CONST uint kSampleSlice = 1024;  // ids that a workgroup of sample_part looks at
AUSPEX_CONST uint kMaxPenaltyWindow = 4096;
AUSPEX_CONST uint kSampleBins = 1024;    // of the histogram: 1/64 of a nat each, then a tail
AUSPEX_CONST uint kSampleHeadWords = 8;  // per row before its bins: see sample_hist.comp
AUSPEX_CONST uint kSampleRowWords = kSampleHeadWords + 3 * kSampleBins;
// What a row is sampled from.
AUSPEX_CONST uint kSampleAll = 0;
AUSPEX_CONST uint kSampleAllowed = 1;  // of what the filters keep, allowed ids; none of them: 0xffffffff
AUSPEX_CONST uint kSampleUnless = 2;   // all, but a token that was sampled before stays

#ifdef __cplusplus
static_assert(sizeof(SampleArgs) == 48, "a new field of AUSPEX_SAMPLING takes the place of a spare word");
static_assert(sizeof(StepState) == 4 * kStateWords && kStateWords <= kChainWord &&
                  kChainWord + kChainCount == kHistoryWord,
              "the state block, counters and the history follow each other");
static_assert(sizeof(StepRequest) == 4 * kRequestWords, "tokens follow at this word");
static_assert(sizeof(StepArgs) <= 128 && sizeof(DeltaArgs) <= 128 && sizeof(AttendArgs) <= 128, "push constants");
#endif
AUSPEX_SHARED_END

#endif
