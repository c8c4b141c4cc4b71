/* auspex 0.1.0, the C interface in one header. Made by amalgamate.py: edit src/ and make it again.
 */
/* SPDX-License-Identifier: Apache-2.0 */
/* auspex in C: the interface for bindings and for programs that are not C++.
 *
 * Use. Link libauspex.so, or in one C++ file:
 *     #define AUSPEX_IMPLEMENTATION      the library (auspex.hpp); leave it out where another file has it
 *     #define AUSPEX_C_IMPLEMENTATION    these functions
 *     #include "auspex.h"
 * Every other file, C99 or later, just includes it. auspex.hpp explains models, sessions and options at length.
 *
 * Handles. auspex_device, _model, _session and so on are made by a function and freed by auspex_..._free(), which
 * accepts null. Free them in any order: a session keeps its model alive, a model its device. A handle that is null, or
 * of another kind, gives AUSPEX_BAD_ARGUMENT. A function that makes a handle and fails sets it to null.
 *
 * Structs begin with struct_size = sizeof the struct, and 0 in any other field is the default: the _init functions
 * clear a struct and set its size. Fields are only added, at the end, so that programs and libraries of different age
 * work together: a smaller struct is completed with defaults, a larger one is accepted if the fields that this library
 * does not know are 0. A struct that a function fills gets the fields that fit, and 0 in fields that the library does
 * not know.
 *
 * Errors are the codes that functions return. The last argument, which may be null, receives the code and a text that
 * says what was expected, what was found and what to do. Nothing is thrown, printed or aborted.
 *
 * Text is UTF-8. Functions take text as a pointer and a length; paths end with a NUL. They return text in a buffer of
 * the caller: the function sets the length (without the NUL, which it adds), and returns AUSPEX_BUFFER_TOO_SMALL if the
 * capacity is less than length + 1. Ask with a null buffer of capacity 0 first. Lists of ids work likewise, without a
 * NUL.
 *
 * Threads. Devices, models, constraints, plans and snapshots may be used from any thread. A session, stream or reply
 * belongs to one thread at a time; a second call meanwhile returns AUSPEX_BAD_ARGUMENT. auspex_session_cancel() alone
 * may be called from any thread at any time while the session exists.
 *
 * Callbacks run on the thread of the call, unless stated, and get the `user` pointer of their struct or call as their
 * last argument. They must not throw, nor use or free the object that calls them. A callback that returns an int32_t
 * cancels the call by any value but 0.
 */
#ifndef AUSPEX_H_INCLUDED
#define AUSPEX_H_INCLUDED

#include <stddef.h>
#include <stdint.h>

/* major * 1000 + minor. Programs and libraries of one major number work together. */
#define AUSPEX_ABI_VERSION 1008

/* AUSPEX_C_SHARED: the functions are in a shared library. */
#ifndef AUSPEX_C_API
#if defined(AUSPEX_C_SHARED) && defined(_WIN32) && defined(AUSPEX_C_IMPLEMENTATION)
#define AUSPEX_C_API __declspec(dllexport)
#elif defined(AUSPEX_C_SHARED) && defined(_WIN32)
#define AUSPEX_C_API __declspec(dllimport)
#elif defined(AUSPEX_C_SHARED) && defined(__GNUC__)
#define AUSPEX_C_API __attribute__((visibility("default")))
#else
#define AUSPEX_C_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------- errors */

typedef int32_t auspex_code;
enum {
    AUSPEX_OK = 0,
    AUSPEX_BAD_ARGUMENT = 1,     /* an argument is null, out of range or contradicts another */
    AUSPEX_BAD_FILE = 2,         /* the file is damaged or contradicts itself */
    AUSPEX_UNSUPPORTED = 3,      /* a valid file or request that this version does not handle */
    AUSPEX_NOT_FOUND = 4,        /* no such file, device or item */
    AUSPEX_IO_ERROR = 5,         /* the operating system refused */
    AUSPEX_OUT_OF_MEMORY = 6,    /* host memory, device memory or threads */
    AUSPEX_NO_DEVICE = 7,        /* no usable device of the kind asked for */
    AUSPEX_DEVICE_LOST = 8,      /* the device is gone; auspex_session_move_to() continues on another */
    AUSPEX_CANCELLED = 9,        /* by a callback or auspex_session_cancel() */
    AUSPEX_CONTEXT_FULL = 10,    /* the history has n_context tokens */
    AUSPEX_BUFFER_TOO_SMALL = 11 /* nothing was written to the buffer; the length says what is needed */
};

/* What went wrong. Set struct_size before the first call, or use AUSPEX_ERROR_INIT. After a call that succeeds the code
 * is AUSPEX_OK and the text empty. A text that does not fit is cut between two characters. */
typedef struct auspex_error {
    uint32_t struct_size;
    auspex_code code;
    char text[512];
} auspex_error;
#define AUSPEX_ERROR_INIT              \
    {                                  \
        sizeof(auspex_error), 0, { 0 } \
    }

/* AUSPEX_ABI_VERSION of the library. Compare its thousands with those of this header after loading it at run time. */
AUSPEX_C_API uint32_t auspex_abi_version(void);
/* "0.1.0" */
AUSPEX_C_API const char* auspex_version_string(void);
/* "bad_file"; "unknown" for a number that is no code. */
AUSPEX_C_API const char* auspex_code_name(auspex_code code);

/* --------------------------------------------------------------------------------------- devices */

typedef struct auspex_device auspex_device;
typedef struct auspex_model auspex_model;
typedef struct auspex_session auspex_session;
typedef struct auspex_plan auspex_plan;
typedef struct auspex_snapshot auspex_snapshot;
typedef struct auspex_stream auspex_stream;
typedef struct auspex_reply auspex_reply;
typedef struct auspex_constraint auspex_constraint;

/* Kinds of devices. */
enum { AUSPEX_KIND_BEST = 0, AUSPEX_KIND_CPU = 1, AUSPEX_KIND_VULKAN = 2 };
enum { AUSPEX_CPU_BEST = 0, AUSPEX_CPU_REFERENCE = 1, AUSPEX_CPU_AVX2 = 2, AUSPEX_CPU_AVX512 = 3, AUSPEX_CPU_NEON = 4 };
enum { AUSPEX_LOG_INFO = 0, AUSPEX_LOG_WARNING = 1 };

/* The application's own Vulkan objects, which must outlive every device, model and session on them. Features are
 * used only if they are listed as enabled. None is required; without timelineSemaphore, fences are used. */
typedef struct auspex_vulkan_handles {
    uint32_t struct_size;
    uint32_t queue_family;
    void* instance;        /* VkInstance, made for Vulkan 1.1 or later (VkApplicationInfo::apiVersion) */
    void* physical_device; /* VkPhysicalDevice */
    void* device;          /* VkDevice */
    void* queue;           /* VkQueue with compute; the library submits to it */
    void* get_instance_proc_addr;
    void (*lock_queue)(void* user); /* around every submission, if other threads use the queue too; or null */
    void (*unlock_queue)(void* user);
    void* user;
    const void* enabled_features; /* the VkPhysicalDeviceFeatures2 chain of the device */
    const char* const* enabled_extensions;
    size_t n_enabled_extensions;
} auspex_vulkan_handles;

typedef struct auspex_device_options {
    uint32_t struct_size;
    int32_t kind;                        /* AUSPEX_KIND_...; 0: a GPU if there is a usable one, else the CPU */
    int32_t gpu;                         /* which Vulkan device, counted from 1; 0: the best */
    int32_t cpu_path;                    /* AUSPEX_CPU_... */
    int32_t n_thread;                    /* the largest number of CPU threads; 0: one per physical core */
    uint32_t reserved;                   /* 0 */
    uint64_t memory_limit_bytes;         /* of a model and a session, on a GPU of all; 0: what is free */
    const auspex_vulkan_handles* borrow; /* run on the application's device instead; or null */
    const void* pipeline_cache;          /* from auspex_device_pipeline_cache(), or null */
    size_t n_pipeline_cache;
    /* The source of host memory, from any thread; or null. `release` gets the same size and alignment back. */
    void* (*allocate)(size_t bytes, size_t alignment, void* user);
    void (*release)(void* p, size_t bytes, size_t alignment, void* user);
    void* allocator_user;
    void (*log)(int32_t level, const char* text, size_t n_text, void* user); /* a line without newline; any thread */
    void* log_user;
    /* The application's threads, or null for threads of the library: calls task(context, i) for each i in 0..n-1, each
     * once, and returns when all have returned. All n must run at the same time, each on a thread of its own, because
     * they wait for one another; one may be the caller's. n_thread says how many, and must not be 0. */
    void (*run_jobs)(uint32_t n, void (*task)(void* context, uint32_t i), void* context, void* user);
    void* jobs_user;
    uint32_t max_submit_ms; /* on a GPU: how long one submission of a prompt may take; 0: 50 */
    uint32_t reserved2;     /* 0 */
    uint32_t barriers_only; /* 1: synchronise the kernels of a step with barriers only, if a GPU driver hangs in one */
    uint32_t reserved3;     /* 0 */
} auspex_device_options;

AUSPEX_C_API auspex_code auspex_device_options_init(auspex_device_options* options, uint32_t struct_size);
/* Opens a device. options: null for the defaults. Free a GPU before main() returns: drivers clean up at exit. */
AUSPEX_C_API auspex_code auspex_device_open(const auspex_device_options* options, auspex_device** device,
                                            auspex_error* error);
AUSPEX_C_API void auspex_device_free(auspex_device* device);

/* A device that auspex_device_list() found. */
typedef struct auspex_device_entry {
    uint32_t struct_size;
    int32_t kind;     /* AUSPEX_KIND_CPU or AUSPEX_KIND_VULKAN */
    int32_t gpu;      /* as in auspex_device_options; 0 for the CPU, and where there is no Vulkan */
    auspex_code code; /* unless AUSPEX_OK, auspex_device_open() refuses it */
    const char* name; /* empty where there is no Vulkan; this and text are valid during the callback */
    const char* text; /* why it is refused; else empty */
} auspex_device_entry;
/* Not 0 cancels. */
typedef int32_t (*auspex_on_device)(const auspex_device_entry* device, void* user);

/* Opens every device for a moment and calls on_device for each: the Vulkan devices in the order of `gpu`, then the CPU.
 * Devices that cannot be used are among them, with the reason. Of the options, `kind` limits the list; `gpu` and
 * `borrow` are ignored. */
AUSPEX_C_API auspex_code auspex_device_list(const auspex_device_options* options, auspex_on_device on_device,
                                            void* user, auspex_error* error);
/* AUSPEX_KIND_CPU or AUSPEX_KIND_VULKAN; AUSPEX_KIND_BEST for null. */
AUSPEX_C_API int32_t auspex_device_kind(const auspex_device* device);
/* "cpu (avx512, 2 threads)", or the GPU's name. */
AUSPEX_C_API auspex_code auspex_device_name(const auspex_device* device, char* text, size_t capacity, size_t* length,
                                            auspex_error* error);
/* What was probed, which kernels were chosen, and why; several lines. */
AUSPEX_C_API auspex_code auspex_device_report(const auspex_device* device, char* text, size_t capacity, size_t* length,
                                              auspex_error* error);
/* Bytes to store for the next auspex_device_open(); no NUL is added. Empty on the CPU. */
AUSPEX_C_API auspex_code auspex_device_pipeline_cache(const auspex_device* device, void* bytes, size_t capacity,
                                                      size_t* length, auspex_error* error);

/* ---------------------------------------------------------------------------------------- models */

typedef struct auspex_load_options {
    uint32_t struct_size;
    uint8_t without_mtp;        /* 1: leave the model's MTP blocks out */
    uint8_t copy_file;          /* 1: copy the file into memory instead of mapping it */
    uint8_t reserved[2];        /* 0 */
    int32_t host_expert_layers; /* on a GPU, layers whose experts stay in host memory; 0: as needed, -1: none */
    uint32_t reserved2;         /* 0 */
    const char* mtp_file;       /* a file with the model's MTP blocks, or null */
    int32_t (*progress)(const char* what, float fraction, void* user); /* not 0 cancels; or null */
    void* progress_user;
    const char* packed_file; /* on the CPU, a file for the weights as the processor reads them: written by the first
                              * load, mapped by later ones; or null */
} auspex_load_options;

typedef struct auspex_model_info {
    uint32_t struct_size;
    uint32_t n_layer;     /* without MTP blocks */
    uint32_t n_attention; /* of those, the layers that keep a KV cache */
    uint32_t n_mtp;       /* MTP blocks that are loaded */
    uint32_t d_model;
    uint32_t n_vocab;
    uint32_t n_context; /* rows the model was trained for */
    uint32_t reserved;
    uint64_t n_parameter;
    uint64_t file_bytes;
    uint64_t weight_bytes;    /* as the device holds them */
    const char* architecture; /* these live as long as the handle */
    const char* name;
    const char* chat_note; /* says what the chat template lacks, or why it cannot be run; else empty */
} auspex_model_info;

AUSPEX_C_API auspex_code auspex_load_options_init(auspex_load_options* options, uint32_t struct_size);
/* Loads a GGUF file; of a split model, the first shard. Unless copied the file is mapped: nobody may shorten it or
 * overwrite it in place while the model lives. */
AUSPEX_C_API auspex_code auspex_model_load(const auspex_device* device, const char* path,
                                           const auspex_load_options* options, auspex_model** model,
                                           auspex_error* error);
/* The same from memory, which must outlive the model and everything on it. */
AUSPEX_C_API auspex_code auspex_model_load_memory(const auspex_device* device, const void* bytes, size_t n_bytes,
                                                  const auspex_load_options* options, auspex_model** model,
                                                  auspex_error* error);
/* The same from a part of a file that is open for reading, such as an asset of an Android package: n_bytes from
 * `offset` on, 0: up to its end. file: a descriptor, on Windows a HANDLE, which may be closed afterwards. The part is
 * mapped, or copied if the offset is not a multiple of 8. */
AUSPEX_C_API auspex_code auspex_model_load_file(const auspex_device* device, intptr_t file, uint64_t offset,
                                                uint64_t n_bytes, const auspex_load_options* options,
                                                auspex_model** model, auspex_error* error);

/* A model that the application reads itself. `read` writes up to n bytes from `offset` on, and returns how many:
 * fewer are fine, 0 is a failure. It is called from front to back. */
typedef struct auspex_reader {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    uint64_t n_bytes;  /* of the whole model */
    size_t (*read)(uint64_t offset, void* to, size_t n, void* user);
    void* user;
} auspex_reader;

/* The same from a function that reads, into memory that the model keeps. */
AUSPEX_C_API auspex_code auspex_model_load_reader(const auspex_device* device, const auspex_reader* reader,
                                                  const auspex_load_options* options, auspex_model** model,
                                                  auspex_error* error);
AUSPEX_C_API void auspex_model_free(auspex_model* model);
AUSPEX_C_API auspex_code auspex_model_get_info(const auspex_model* model, auspex_model_info* info, auspex_error* error);

/* Flags of auspex_encode(), auspex_decode() and auspex_stream_create(). */
enum {
    AUSPEX_SPECIAL = 1, /* parse control tokens in the text; show them */
    AUSPEX_BEGIN = 2    /* auspex_encode() alone: the text begins a history; put the BOS token first where the file asks
                           for it (tokenizer.ggml.add_bos_token), unless the text begins with it */
};

/* Text to ids. No token is added at either end, except by AUSPEX_BEGIN. */
AUSPEX_C_API auspex_code auspex_encode(const auspex_model* model, const char* text, size_t n_text, uint32_t flags,
                                       int32_t* ids, size_t capacity, size_t* n_ids, auspex_error* error);
/* Ids to bytes, which may begin or end within a character; auspex_stream joins them. */
AUSPEX_C_API auspex_code auspex_decode(const auspex_model* model, const int32_t* ids, size_t n_ids, uint32_t flags,
                                       char* text, size_t capacity, size_t* length, auspex_error* error);
/* 1 for the ids that end a generation, else 0. */
AUSPEX_C_API int32_t auspex_is_end(const auspex_model* model, int32_t id);

/* A row of a prompt at which later prompts are likely to differ; auspex_session_sync() keeps the state there. With one
 * at the last row, n_ids - 1, the same prompt computes that row alone when it comes again. */
typedef struct auspex_mark {
    uint64_t row;
    uint32_t pinned;   /* 1: given up last */
    uint32_t reserved; /* 0 */
} auspex_mark;

/* The prompt text of a conversation in OpenAI's form: {"messages": [...], "tools": [...], and the switches
 * add_generation_prompt, enable_thinking, preserve_thinking}. Without the last two the model's template decides, also
 * where they are null. Other keys are ignored. */
AUSPEX_C_API auspex_code auspex_render(const auspex_model* model, const char* json, size_t n_json, char* text,
                                       size_t capacity, size_t* length, auspex_error* error);
/* The same as ids, with marks. inside_thinking, if not null: 1 if the prompt ends inside <think>. marks: null if they
 * are not wanted; n_marks, if not null, gets their number in any case, 0 if there is no prompt. */
AUSPEX_C_API auspex_code auspex_render_ids(const auspex_model* model, const char* json, size_t n_json, int32_t* ids,
                                           size_t capacity, size_t* n_ids, auspex_mark* marks, size_t mark_capacity,
                                           size_t* n_marks, int32_t* inside_thinking, auspex_error* error);

/* -------------------------------------------------------------------------------------- sessions */

/* How keys and values are kept. */
enum { AUSPEX_KV_F16 = 0, AUSPEX_KV_Q8_0 = 1, AUSPEX_KV_Q4_0 = 2, AUSPEX_KV_Q4_1 = 3, AUSPEX_KV_F32 = 4 };
/* Where drafts come from. */
enum {
    AUSPEX_DRAFT_OFF = 0,
    AUSPEX_DRAFT_MTP = 1,
    AUSPEX_DRAFT_LOOKUP = 2,
    AUSPEX_DRAFT_MTP_LOOKUP = 3,
    AUSPEX_DRAFT_BEST = 4 /* all that the model has: MTP block and lookup, or lookup alone */
};
/* The largest number of tokens that one auspex_session_next() gives. */
enum { AUSPEX_MAX_TOKENS = 9 };
#define AUSPEX_NO_CHECKPOINTS UINT64_MAX

typedef struct auspex_session_options {
    uint32_t struct_size;
    uint32_t n_context;        /* tokens of history, at most 16777216; 0: 4096, or the model's if less */
    uint32_t n_ubatch;         /* rows computed at once in a prefill, 1..4096; 0: what suits the device */
    uint32_t run_ahead;        /* on a GPU: cycles queued ahead of the caller, 0..7 */
    int32_t kv_k, kv_v;        /* AUSPEX_KV_... */
    int32_t draft;             /* AUSPEX_DRAFT_... */
    int32_t draft_depth;       /* tokens drafted in each pass, 1..8; 0: chosen from measurements, -1: none */
    uint64_t kv_budget_bytes;  /* unless 0, windows such that keys and values, draft blocks' too, take at most this */
    uint64_t checkpoint_bytes; /* host memory for checkpoints; 0: the default, AUSPEX_NO_CHECKPOINTS: none */
    const char* windows;       /* "all:4096+4,7:full": how far layers look back; null: everything */
    int32_t (*progress)(const char* what, float fraction,
                        void* user); /* before each step of a prefill; not 0 cancels */
    void* progress_user;
    int32_t exact_prompts; /* 1: on a GPU, prompts do not round activations and weights to halves; slower */
    int32_t reserved;      /* 0 */
} auspex_session_options;

/* Added to the logit of one token. */
typedef struct auspex_logit_bias {
    int32_t id;
    float bias; /* -1000..1000 */
} auspex_logit_bias;

/* How tokens are sampled; all 0 is greedy. */
typedef struct auspex_sampling {
    uint32_t struct_size;
    int32_t top_k;           /* keep the k largest; 0: all */
    float temperature;       /* 0: the largest logit */
    float top_p;             /* keep the smallest set with this much probability; 0: all */
    float min_p;             /* keep ids with at least this share of the largest probability */
    float repeat_penalty;    /* 0 or 1: none */
    float frequency_penalty; /* subtracted once per occurrence */
    float presence_penalty;  /* subtracted once per seen id */
    uint32_t penalty_window; /* how many of the last tokens count as seen; 0: 64 */
    uint32_t reserved;       /* 0 */
    uint64_t seed;
    const auspex_constraint* grammar;    /* only tokens that it allows are sampled; null: all */
    uint64_t constrained_from;           /* 1 + the token of the history where the text of the grammar begins, to go on
                                            after a load; 0: where auspex_session_next() is first called with it */
    const auspex_logit_bias* logit_bias; /* added before everything else; null: none */
    size_t n_logit_bias;
} auspex_sampling;

/* What generated text must look like, for auspex_sampling.grammar; docs/CONSTRAINTS.md. Immutable: any thread, any
 * number of sessions. */
enum { AUSPEX_CONSTRAINT_JSON_SCHEMA = 0, AUSPEX_CONSTRAINT_GBNF = 1, AUSPEX_CONSTRAINT_REGEX = 2 };
/* model: its vocabulary spells the texts. kind: what `text` is, AUSPEX_CONSTRAINT_... */
AUSPEX_C_API auspex_code auspex_constraint_create(const auspex_model* model, int32_t kind, const char* text,
                                                  size_t n_text, auspex_constraint** constraint, auspex_error* error);
/* The same for a JSON Schema with more choices. */
typedef struct auspex_schema_options {
    uint32_t struct_size;
    int32_t ignore_unsupported; /* 1: leave out keywords that cannot be expressed, instead of refusing the schema */
    int32_t any_order;          /* 1: members of an object may come in any order; 0: as the schema lists them */
    int32_t no_white_space;     /* 1: no white space between tokens of JSON */
} auspex_schema_options;
AUSPEX_C_API auspex_code auspex_schema_options_init(auspex_schema_options* options, uint32_t struct_size);
AUSPEX_C_API auspex_code auspex_constraint_for_schema(const auspex_model* model, const char* text, size_t n_text,
                                                      const auspex_schema_options* options,
                                                      auspex_constraint** constraint, auspex_error* error);
/* Replies with calls of the tools of a request of auspex_render(), at most 256. required: 1 for at least one call.
 * tool: null for any, or the only one to be called. inside_thinking: as auspex_render_ids() gives it. Where the prompt
 * of the request closes the thinking, a required call comes at once. */
AUSPEX_C_API auspex_code auspex_constraint_from_tools(const auspex_model* model, const char* json, size_t n_json,
                                                      int32_t required, const char* tool, int32_t inside_thinking,
                                                      auspex_constraint** constraint, auspex_error* error);
/* The same with more choices. */
typedef struct auspex_tool_options {
    uint32_t struct_size;
    int32_t required;        /* 1: at least one call */
    int32_t inside_thinking; /* as auspex_render_ids() gives it */
    int32_t one_call;        /* 1: no second call */
    const char* tool;        /* the only one to be called; null: any */
    const char* answer; /* a JSON Schema: a reply is either calls or JSON that is valid against it; null: free text,
                           and calls after it. Not read where a call is required */
    size_t n_answer;
    int32_t ignore_unsupported; /* as in auspex_schema_options */
    int32_t any_order;
} auspex_tool_options;
AUSPEX_C_API auspex_code auspex_tool_options_init(auspex_tool_options* options, uint32_t struct_size);
AUSPEX_C_API auspex_code auspex_constraint_for_tools(const auspex_model* model, const char* json, size_t n_json,
                                                     const auspex_tool_options* options, auspex_constraint** constraint,
                                                     auspex_error* error);
/* What was left out of schemas, a line each: "#/properties/a: uniqueItems", and formats that are not known. Of tools,
 * each begins with the name of the tool. */
AUSPEX_C_API auspex_code auspex_constraint_ignored(const auspex_constraint* constraint, char* text, size_t capacity,
                                                   size_t* length, auspex_error* error);
/* May be called while sessions use the constraint: they keep what they need. */
AUSPEX_C_API void auspex_constraint_free(auspex_constraint* constraint);

/* Why auspex_session_sync() computed the rows that it did. */
enum {
    AUSPEX_SYNC_UNCHANGED = 0,
    AUSPEX_SYNC_APPENDED = 1,
    AUSPEX_SYNC_RESUMED = 2,
    AUSPEX_SYNC_CHECKPOINT = 3,
    AUSPEX_SYNC_GIVEN_UP = 4,
    AUSPEX_SYNC_NO_STATE = 5,
    AUSPEX_SYNC_NEW_TEXT = 6
};

typedef struct auspex_sync_report {
    uint32_t struct_size;
    int32_t reason; /* AUSPEX_SYNC_... */
    uint64_t rows_computed;
    uint64_t rows_reused;
    uint64_t diverged_at;    /* tokens that the history before and the new one have in common */
    uint64_t checkpoint_row; /* rows below it were reused */
    char text[256];          /* for people: "diverged at row 12046 of 30112: ..." */
} auspex_sync_report;

typedef struct auspex_stats {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t rows_prefilled;
    uint64_t rows_decoded;
    uint64_t tokens_sampled;
    double prefill_s;
    double decode_s;
    uint64_t memory_bytes; /* held by this session */
    uint64_t drafted;      /* tokens that were drafted and verified */
    uint64_t accepted;     /* of those */
} auspex_stats;

AUSPEX_C_API auspex_code auspex_session_options_init(auspex_session_options* options, uint32_t struct_size);
AUSPEX_C_API auspex_code auspex_sampling_init(auspex_sampling* sampling, uint32_t struct_size);
/* Opens a session and takes its memory. What comes later is small and bounded; docs/MEMORY.md names it. */
AUSPEX_C_API auspex_code auspex_session_create(const auspex_model* model, const auspex_session_options* options,
                                               auspex_session** session, auspex_error* error);
/* Not while a call on it runs. */
AUSPEX_C_API void auspex_session_free(auspex_session* session);
/* From any thread, at any time while the session exists: the call that runs on it returns AUSPEX_CANCELLED before its
 * next step. What it has computed stays. sync, next, logits and score return it also if the cancel came during their
 * last step; then everything is computed and every output is set. Without a running call nothing happens, so a loop
 * over auspex_session_next() also needs a flag of its own. Loading and saving files are not cancelled. The function
 * takes a lock, so a signal handler must not call it: set a flag there that a callback reads. */
AUSPEX_C_API void auspex_session_cancel(auspex_session* session);

/* Makes the history equal to `ids` and computes the rows that are missing. marks, report: may be null. */
AUSPEX_C_API auspex_code auspex_session_sync(auspex_session* session, const int32_t* ids, size_t n_ids,
                                             const auspex_mark* marks, size_t n_marks, auspex_sync_report* report,
                                             auspex_error* error);
/* Samples the next token, or several when drafting, and appends them to the history. sampling: null is greedy.
 * capacity: at least AUSPEX_MAX_TOKENS, else AUSPEX_BUFFER_TOO_SMALL before anything is computed. If
 * auspex_session_cancel() came during the step, AUSPEX_CANCELLED is returned with the tokens of the step. */
AUSPEX_C_API auspex_code auspex_session_next(auspex_session* session, const auspex_sampling* sampling, int32_t* ids,
                                             size_t capacity, size_t* n_ids, auspex_error* error);
/* The logits of the token after the history, before bias and penalties, for applications that sample by themselves:
 * auspex_session_sync() with the history and the chosen token appends it. n_logits: n_vocab of auspex_model_info. The
 * view is valid until the next call on the session. */
AUSPEX_C_API auspex_code auspex_session_logits(auspex_session* session, const float** logits, size_t* n_logits,
                                               auspex_error* error);
/* The logits of the token after ids[row], valid during the call. Not 0 cancels. */
typedef int32_t (*auspex_on_row)(uint64_t row, const float* logits, size_t n_logits, void* user);
/* Computes `ids` from the first one on and passes the logits of each row to on_row, in order. The history becomes
 * `ids`. */
AUSPEX_C_API auspex_code auspex_session_score(auspex_session* session, const int32_t* ids, size_t n_ids,
                                              auspex_on_row on_row, void* user, auspex_error* error);
/* Every token so far. */
AUSPEX_C_API auspex_code auspex_session_history(auspex_session* session, int32_t* ids, size_t capacity, size_t* n_ids,
                                                auspex_error* error);
/* How deep to draft from now on: 1..8; 0: chosen from measurements; -1: not at all. */
AUSPEX_C_API auspex_code auspex_session_set_draft_depth(auspex_session* session, int32_t depth, auspex_error* error);
AUSPEX_C_API auspex_code auspex_session_get_stats(auspex_session* session, auspex_stats* stats, auspex_error* error);

/* A second session at the same row, as a copy; both continue independently. It calls the same callbacks. */
AUSPEX_C_API auspex_code auspex_session_fork(auspex_session* session, auspex_session** fork, auspex_error* error);
/* Continues on another model of the same weights: after AUSPEX_DEVICE_LOST, or to leave a device. report: or null. */
AUSPEX_C_API auspex_code auspex_session_move_to(auspex_session* session, const auspex_model* model,
                                                auspex_sync_report* report, auspex_error* error);

/* What a session file holds beside rows and states. */
typedef struct auspex_file_info {
    uint32_t struct_size;
    uint32_t recovered;  /* 1: the last save was cut short; this is the one before it */
    uint64_t n_token;    /* of the history */
    uint64_t note_bytes; /* of the application's own bytes */
} auspex_file_info;

/* Saves the conversation, and up to 64 MiB of the application's own bytes, to a file. A second save to the same file
 * appends what changed. */
AUSPEX_C_API auspex_code auspex_session_save(auspex_session* session, const char* path, const void* note, size_t n_note,
                                             auspex_error* error);
/* Makes the conversation of a file the history. info: or null. */
AUSPEX_C_API auspex_code auspex_session_load(auspex_session* session, const char* path, auspex_file_info* info,
                                             auspex_error* error);
/* Reads the note of a file without a model. info: or null; filled also where the note does not fit. */
AUSPEX_C_API auspex_code auspex_read_session_file(const char* path, auspex_file_info* info, void* note, size_t capacity,
                                                  size_t* n_note, auspex_error* error);

/* The history and its state as bytes. A session of the same model and options that restores them has this history and
 * continues as this one does. */
AUSPEX_C_API auspex_code auspex_snapshot_take(auspex_session* session, auspex_snapshot** snapshot, auspex_error* error);
AUSPEX_C_API auspex_code auspex_snapshot_from_bytes(const void* bytes, size_t n_bytes, auspex_snapshot** snapshot,
                                                    auspex_error* error);
/* A view that is valid as long as the snapshot. n_token: of the history, 0 for a snapshot from bytes; or null. */
AUSPEX_C_API auspex_code auspex_snapshot_bytes(const auspex_snapshot* snapshot, const void** bytes, size_t* n_bytes,
                                               uint64_t* n_token, auspex_error* error);
AUSPEX_C_API auspex_code auspex_snapshot_restore(const auspex_snapshot* snapshot, auspex_session* session,
                                                 auspex_error* error);
AUSPEX_C_API void auspex_snapshot_free(auspex_snapshot* snapshot);

/* ---------------------------------------------------------------------------------- memory plans */

typedef struct auspex_plan_totals {
    uint32_t struct_size;
    uint32_t fits; /* 1 if it fits, or the limit is not known */
    uint32_t n_item;
    uint32_t n_alternative;
    uint64_t weight_bytes;     /* taken by loading */
    uint64_t session_bytes;    /* taken by auspex_session_create() */
    uint64_t file_bytes;       /* read in place; not part of the total */
    uint64_t total_bytes;      /* weights and session */
    uint64_t pinned_bytes;     /* the part of the total that the limit does not count */
    uint64_t checkpoint_bytes; /* of the session, in host memory */
    uint64_t kv_token_bytes;   /* added by each further token of n_context, from the largest window + n_ubatch on */
    uint64_t limit_bytes;      /* 0: not known */
} auspex_plan_totals;

/* Where an item of a plan lies. */
enum {
    AUSPEX_PLACE_ALLOCATOR = 0,
    AUSPEX_PLACE_DEVICE = 1,
    AUSPEX_PLACE_FILE = 2,
    AUSPEX_PLACE_HOST = 3,
    AUSPEX_PLACE_PINNED = 4
};

/* An item of a plan, or an alternative: a change of options that would take less. */
typedef struct auspex_plan_item {
    uint32_t struct_size;
    int32_t layer;    /* of an item; -1: of no single layer */
    int32_t place;    /* of an item: AUSPEX_PLACE_... */
    uint32_t fits;    /* of an alternative: 1 if the plan fits then */
    uint64_t bytes;   /* of an item; of an alternative, the total */
    const char* what; /* valid as long as the plan */
} auspex_plan_item;

/* What a session would take, to the byte, and what the weights take. Allocates none of it. */
AUSPEX_C_API auspex_code auspex_plan_model(const auspex_model* model, const auspex_session_options* options,
                                           auspex_plan** plan, auspex_error* error);
/* The same for a model that is not loaded; reads the file's header. */
AUSPEX_C_API auspex_code auspex_plan_file(const auspex_device* device, const char* path,
                                          const auspex_session_options* options, const auspex_load_options* load,
                                          auspex_plan** plan, auspex_error* error);
AUSPEX_C_API auspex_code auspex_plan_get_totals(const auspex_plan* plan, auspex_plan_totals* totals,
                                                auspex_error* error);
/* Returns AUSPEX_NOT_FOUND beyond the last. */
AUSPEX_C_API auspex_code auspex_plan_get_item(const auspex_plan* plan, uint32_t index, auspex_plan_item* item,
                                              auspex_error* error);
AUSPEX_C_API auspex_code auspex_plan_get_alternative(const auspex_plan* plan, uint32_t index, auspex_plan_item* item,
                                                     auspex_error* error);
AUSPEX_C_API void auspex_plan_free(auspex_plan* plan);

/* --------------------------------------------------------------------------------------- streams */

/* Tokens to text to show: holds back unfinished characters, and text that may begin a stop string. */
AUSPEX_C_API auspex_code auspex_stream_create(const auspex_model* model, const char* const* stops, size_t n_stops,
                                              uint32_t flags, auspex_stream** stream, auspex_error* error);
/* text: NUL-terminated, valid until the next call on the stream. */
AUSPEX_C_API auspex_code auspex_stream_push(auspex_stream* stream, int32_t id, const char** text, size_t* n_text,
                                            auspex_error* error);
AUSPEX_C_API auspex_code auspex_stream_finish(auspex_stream* stream, const char** text, size_t* n_text,
                                              auspex_error* error);
/* 1 once a stop string was found. */
AUSPEX_C_API int32_t auspex_stream_stopped(const auspex_stream* stream);
AUSPEX_C_API void auspex_stream_free(auspex_stream* stream);

/* ------------------------------------------------------------------------------------------ chat */

/* What an event says. */
enum {
    AUSPEX_EVENT_REASONING = 0,      /* text: more of the thinking */
    AUSPEX_EVENT_TEXT = 1,           /* text: more of the answer */
    AUSPEX_EVENT_CALL_BEGIN = 2,     /* text: the name of the tool */
    AUSPEX_EVENT_CALL_ARGUMENTS = 3, /* text: more of the arguments; all of a call are one JSON object */
    AUSPEX_EVENT_CALL_END = 4,       /* the call is complete: now it may be made */
    AUSPEX_EVENT_CALL_DROPPED = 5,   /* the call is malformed: it must not be made, and follows as text */
    AUSPEX_EVENT_USAGE = 6,          /* the counts below */
    AUSPEX_EVENT_DONE = 7            /* text: the assistant's message as JSON, for the next request */
};
/* Why a reply ended. */
enum { AUSPEX_FINISH_STOP = 0, AUSPEX_FINISH_LENGTH = 1, AUSPEX_FINISH_CALLS = 2, AUSPEX_FINISH_CONTEXT = 3 };

typedef struct auspex_event {
    uint32_t struct_size;
    int32_t type;
    const char* text; /* NUL-terminated, valid during the callback */
    size_t n_text;
    int32_t call;         /* which tool call, counted from 0 */
    int32_t finish;       /* AUSPEX_EVENT_DONE: AUSPEX_FINISH_... */
    uint64_t n_prompt;    /* AUSPEX_EVENT_USAGE: tokens of the prompt, */
    uint64_t n_reused;    /* of those, tokens that were not computed again, */
    uint64_t n_generated; /* and tokens generated, those of thinking and calls with them */
} auspex_event;

/* Not 0 cancels. */
typedef int32_t (*auspex_on_event)(const auspex_event* event, void* user);

typedef struct auspex_chat_options {
    uint32_t struct_size;
    uint32_t max_tokens;             /* 0: until the model ends, or the context is full */
    const auspex_sampling* sampling; /* null: greedy */
    const char* const* stops;        /* end the reply and are not shown; not looked for in thinking and calls */
    size_t n_stops;
    int32_t free_thinking;        /* 1: the grammar of `sampling` applies to the answer and begins after the thinking */
    uint32_t max_thinking_tokens; /* unless 0, the thinking is closed after that many */
} auspex_chat_options;

AUSPEX_C_API auspex_code auspex_chat_options_init(auspex_chat_options* options, uint32_t struct_size);
/* Answers a conversation: renders a request as for auspex_render(), computes the rows that are missing, generates, and
 * calls on_event for each part of the reply as it comes, and at the end for usage and done. A reply that is cancelled,
 * by on_event or auspex_session_cancel(), ends without these two; what was generated stays in the history. Otherwise
 * the history ends with the last token of the reply. */
AUSPEX_C_API auspex_code auspex_chat(auspex_session* session, const char* json, size_t n_json,
                                     const auspex_chat_options* options, auspex_on_event on_event, void* user,
                                     auspex_error* error);

/* The reply parser of auspex_chat(), for applications with a loop of their own: takes text in any pieces and gives the
 * same events, except usage and done. json: the request, whose tools say which arguments are strings; or null. */
AUSPEX_C_API auspex_code auspex_reply_create(int32_t inside_thinking, const char* json, size_t n_json,
                                             auspex_reply** reply, auspex_error* error);
AUSPEX_C_API auspex_code auspex_reply_push(auspex_reply* reply, const char* text, size_t n_text,
                                           auspex_on_event on_event, void* user, auspex_error* error);
/* Ends the reply, and reports the text that was held back. */
AUSPEX_C_API auspex_code auspex_reply_finish(auspex_reply* reply, auspex_on_event on_event, void* user,
                                             auspex_error* error);
/* The assistant's message as JSON, for the next request. */
AUSPEX_C_API auspex_code auspex_reply_message(const auspex_reply* reply, char* text, size_t capacity, size_t* length,
                                              auspex_error* error);
AUSPEX_C_API void auspex_reply_free(auspex_reply* reply);

#ifdef __cplusplus
}
#endif

#endif /* AUSPEX_H_INCLUDED */

/* ==== the code ==================================================================================== */
#if defined(AUSPEX_C_IMPLEMENTATION) && !defined(AUSPEX_C_IMPLEMENTATION_INCLUDED)
#define AUSPEX_C_IMPLEMENTATION_INCLUDED
#ifndef __cplusplus
#error "AUSPEX_C_IMPLEMENTATION is for one C++17 file; C files include auspex.h without it"
#endif
#include "auspex.hpp"
#pragma push_macro("Status")
#undef Status
#pragma push_macro("check")
#undef check
#pragma push_macro("emit")
#undef emit
#pragma push_macro("max")
#undef max
#pragma push_macro("min")
#undef min
#pragma push_macro("slots")
#undef slots
#pragma push_macro("small")
#undef small
#pragma push_macro("verify")
#undef verify

// --------------------------------------------------------------------------------- src/capi/capi.h

// capi/capi: what the functions of auspex.h share: handles, answers, structs and buffers.
//
// Owns    the handles' layout, the conversion between structs of C and options of C++, and the boundary that no
//         exception crosses. Uses the public C++ interface alone.
// Thread  helpers without state; a session's handle has a lock for auspex_session_cancel().
// Tests   tests/test_capi.cpp, tests/test_capi_refused.cpp, tests/capi_client.c, tests/test_capi.py


#include <atomic>
#include <cstring>
#include <mutex>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {

/// What a function returns: a code and a text, which is empty if it is AUSPEX_OK.
struct [[nodiscard]] Answer {
    auspex_code code = AUSPEX_OK;
    std::string text;

    Answer() = default;
    Answer(auspex_code c, std::string t) : code(c), text(std::move(t)) {}
    Answer(Status s);  // NOLINT: implicit on purpose
    bool ok() const { return code == AUSPEX_OK; }
};

inline Answer bad(std::string text) { return Answer(AUSPEX_BAD_ARGUMENT, std::move(text)); }

/// Returns from the enclosing function unless `expr` is an Answer or a Status that is ok.
#define AUSPEX_C_TRY(expr)                       \
    do {                                         \
        ::auspex::capi::Answer answer_ = (expr); \
        if (!answer_.ok()) return answer_;       \
    } while (false)

/// Fills the caller's error, if there is one, and returns the code.
auspex_code give(auspex_error* error, auspex_code code, const char* text, size_t n_text) noexcept;

/// Gives the error of the exception that is being handled. Call in a catch block only.
auspex_code give_exception(auspex_error* error) noexcept;

/// Runs the body of a function of auspex.h. Nothing that is thrown leaves it.
template <class F>
auspex_code call(auspex_error* error, F body) noexcept {
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
    try {
#endif
        const Answer answer = body();
        return give(error, answer.code, answer.text.data(), answer.text.size());
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
    } catch (...) {
        return give_exception(error);
    }
#endif
}

// ------------------------------------------------------------------------------------------ handles

/// Begins every handle: tells the kinds apart, and living handles from freed ones as far as that is possible.
template <uint64_t kMagic>
struct Handle {
    static constexpr uint64_t kKind = kMagic;
    volatile uint64_t magic = kMagic;
    Handle() = default;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { magic = 0; }
};

/// A handle of C; null where it is not one of this kind.
template <class T>
bool is(const T* handle) {
    return handle != nullptr && reinterpret_cast<uintptr_t>(handle) % alignof(T) == 0 && handle->magic == T::kKind;
}

template <class T>
Answer need(const T* handle, const char* name) {
    if (is(handle)) return Answer();
    return bad(std::string("the ") + name +
               (handle == nullptr ? " is null" : " is another kind of object, or was freed") + "; expected an auspex_" +
               name);
}

/// out_of_memory for an object whose constructor, or a value whose function, had no memory for it: both are empty then.
template <class T>
Answer need_memory(const T& made) {
    if (made) return Answer();
    return Answer(AUSPEX_OUT_OF_MEMORY, "the standard allocator has no memory left; free some, or ask for less");
}

/// Clears what an output points to.
template <class T>
Answer need_output(T* p, const char* name) {
    if (p == nullptr) return bad(std::string(name) + " is null; expected a place for the result");
    *p = T();
    return Answer();
}

// ------------------------------------------------------------------------------------------ structs

constexpr uint32_t kMaxStruct = 4096;  ///< bytes; a size beyond was never set

/// Whether struct_size can be the size of this struct in any version.
Answer check_size(uint32_t size, size_t alignment, const char* name);
/// Whether the bytes of a larger struct that this library does not know are 0.
Answer check_tail(const void* p, size_t known, uint32_t size, const char* name);

/// Reads a struct of any version: what it does not have is 0. from: null is all 0.
template <class T>
Answer read(const T* from, T* to, const char* name) {
    *to = T();
    if (from == nullptr) return Answer();
    const uint32_t n = from->struct_size;
    AUSPEX_C_TRY(check_size(n, alignof(T), name));
    AUSPEX_C_TRY(check_tail(from, sizeof(T), n, name));
    std::memcpy(to, from, n < sizeof(T) ? n : sizeof(T));
    return Answer();
}

/// Whether a struct can be filled. null: not if it is needed.
template <class T>
Answer check_output(const T* to, const char* name, bool needed) {
    if (to == nullptr) return needed ? bad(std::string(name) + " is null; expected a struct to fill") : Answer();
    return check_size(to->struct_size, alignof(T), name);
}

/// Fills a struct of any version that check_output() has passed.
template <class T>
void write(T* to, const T& from) {
    if (to == nullptr) return;
    const uint32_t n = to->struct_size;
    std::memset(static_cast<void*>(to), 0, n);
    std::memcpy(static_cast<void*>(to), &from, n < sizeof(T) ? n : sizeof(T));
    to->struct_size = n;
}

template <class T>
auspex_code init(T* p, uint32_t size) {
    if (p == nullptr || !check_size(size, alignof(T), "").ok()) return AUSPEX_BAD_ARGUMENT;
    std::memset(static_cast<void*>(p), 0, size);
    p->struct_size = size;
    return AUSPEX_OK;
}

/// A number that becomes an enumerator.
Answer check_range(int64_t value, int64_t first, int64_t last, const char* name);

// ---------------------------------------------------------------------------------- texts and lists

/// Copies n elements to a buffer of the caller. extra: room for a NUL. Sets *length in any case.
template <class T>
Answer fill(const T* from, size_t n, T* to, size_t capacity, size_t* length, size_t extra, const char* name) {
    *length = n;
    if (to == nullptr && capacity > 0) return bad(std::string(name) + " is null and its capacity is not 0");
    if (capacity < n + extra)
        return Answer(AUSPEX_BUFFER_TOO_SMALL, std::string(name) + " has room for " + std::to_string(capacity) +
                                                   ", expected at least " + std::to_string(n + extra));
    if (n > 0) std::memcpy(to, from, n * sizeof(T));
    return Answer();
}
/// The same for text: adds the NUL.
Answer fill_text(std::string_view text, char* to, size_t capacity, size_t* length);
/// A text of at most n - 1 bytes for an array in a struct, cut at a character.
void put_text(std::string_view text, char* to, size_t n) noexcept;

/// A pointer and a length going in.
template <class T>
Answer view(const T* p, size_t n, Span<const T>* out, const char* name) {
    if (p == nullptr && n > 0) return bad(std::string(name) + " is null and its length is not 0");
    *out = Span<const T>(p, n);
    return Answer();
}
Answer view_text(const char* p, size_t n, std::string_view* out, const char* name);
Answer need_path(const char* path);

// ------------------------------------------------------------------------------------------ options

/// The allocator and the job system of the application, with the pointers that their functions get.
struct Host {
    void* (*allocate)(size_t bytes, size_t alignment, void* user);
    void (*release)(void* p, size_t bytes, size_t alignment, void* user);
    void* user;
    void (*run_jobs)(uint32_t n, void (*task)(void* context, uint32_t i), void* context, void* user);
    void* jobs_user;
};

Answer device_options(const auspex_device_options& from, const std::shared_ptr<Host>& host, DeviceOptions* to);
Answer load_options(const auspex_load_options* from, LoadOptions* to);
Answer session_options(const auspex_session_options* from, SessionOptions* to);
Answer sampling(const auspex_sampling* from, Sampling* to);
/// The request of a chat.
Answer chat_request(const char* json, size_t n_json, ChatRequest* to);

/// Calls on_event for each event. Not ok: it cancelled.
Answer say_events(const std::vector<ReplyEvent>& events, auspex_on_event on_event, void* user);

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// The handles of auspex.h. `host` comes first: what was allocated through it is freed before it.
struct auspex_device : auspex::capi::Handle<0x617578'6465'7631> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Device device;
};
struct auspex_model : auspex::capi::Handle<0x617578'6d6f'6431> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Model model;
};
struct auspex_session : auspex::capi::Handle<0x617578'7365'7331> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::Model model;
    auspex::Session session;
    std::mutex lock;         ///< guards the two below
    bool running = false;    ///< a call runs on it
    bool cancelled = false;  ///< and is to return AUSPEX_CANCELLED
};
struct auspex_constraint : auspex::capi::Handle<0x617578'636f'6e31> {
    auspex::Constraint constraint;
    std::string ignored;  ///< lines
};
struct auspex_plan : auspex::capi::Handle<0x617578'706c'6131> {
    auspex::MemoryPlan plan;
};
struct auspex_snapshot : auspex::capi::Handle<0x617578'736e'6131> {
    auspex::Snapshot snapshot;
};
struct auspex_stream : auspex::capi::Handle<0x617578'7374'7231> {
    std::shared_ptr<auspex::capi::Host> host;
    auspex::TextStream stream;
    std::string text;                          ///< what the last call returned
    mutable std::atomic<bool> busy = {false};  ///< a call runs on it
};
struct auspex_reply : auspex::capi::Handle<0x617578'7265'7031> {
    auspex::ReplyStream stream;
    mutable std::atomic<bool> busy = {false};
};

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {

/// One call on a session: refuses another at the same time, and carries auspex_session_cancel() to it.
class Running {
  public:
    explicit Running(auspex_session* session);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    Answer answer() const;  ///< bad_argument unless it may run
    bool cancelled() const;
    /// The answer of a call that has computed everything: cancelled if a cancel came during its last step.
    Answer done() const;
    Session& session() const { return session_->session; }

  private:
    auspex_session* session_;
    bool runs_ = false;
};

/// One call on a stream or reply: refuses another at the same time.
class Turn {
  public:
    explicit Turn(std::atomic<bool>& busy) : busy_(busy), mine_(!busy.exchange(true, std::memory_order_acquire)) {}
    ~Turn() {
        if (mine_) busy_.store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool mine() const { return mine_; }
    Answer answer(const char* name) const;  ///< bad_argument unless it may run

  private:
    std::atomic<bool>& busy_;
    const bool mine_;
};

/// Runs the body of a function on a session: body(running).
template <class F>
auspex_code call_session(auspex_session* session, auspex_error* error, F body) noexcept {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(session, "session"));
        Running running(session);
        AUSPEX_C_TRY(running.answer());
        return body(running);
    });
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// ------------------------------------------------------------------------------- src/capi/capi.cpp

#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

auspex_code code_of(Code code) {
    switch (code) {
        case Code::ok: return AUSPEX_OK;
        case Code::bad_argument: return AUSPEX_BAD_ARGUMENT;
        case Code::bad_file: return AUSPEX_BAD_FILE;
        case Code::unsupported: return AUSPEX_UNSUPPORTED;
        case Code::not_found: return AUSPEX_NOT_FOUND;
        case Code::io_error: return AUSPEX_IO_ERROR;
        case Code::out_of_memory: return AUSPEX_OUT_OF_MEMORY;
        case Code::no_device: return AUSPEX_NO_DEVICE;
        case Code::device_lost: return AUSPEX_DEVICE_LOST;
        case Code::cancelled: return AUSPEX_CANCELLED;
        case Code::context_full: break;
    }
    return AUSPEX_CONTEXT_FULL;
}

}  // namespace

Answer::Answer(Status s) : code(code_of(s.code)), text(std::move(s.text)) {}

void put_text(std::string_view text, char* to, size_t n) noexcept {
    size_t length = text.size() < n ? text.size() : n - 1;
    if (length < text.size())
        while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
    if (length > 0) std::memcpy(to, text.data(), length);
    to[length] = '\0';
}

auspex_code give(auspex_error* error, auspex_code code, const char* text, size_t n_text) noexcept {
    constexpr uint32_t kText = offsetof(auspex_error, text);
    if (error == nullptr || error->struct_size <= kText) return code;
    const uint32_t size = error->struct_size < sizeof *error ? error->struct_size : uint32_t{sizeof *error};
    error->code = code;
    put_text(std::string_view(text, n_text), error->text, size - kText);
    return code;
}

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
auspex_code give_exception(auspex_error* error) noexcept {
    static constexpr char kMemory[] = "the standard allocator has no memory left; free some, or ask for less";
    static constexpr char kThrown[] = "a callback threw an exception; callbacks of the C interface must not throw";
    try {
        throw;
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    } catch (...) {
        return give(error, AUSPEX_BAD_ARGUMENT, kThrown, sizeof kThrown - 1);
    }
    return give(error, AUSPEX_OUT_OF_MEMORY, kMemory, sizeof kMemory - 1);
}
#endif

Answer check_size(uint32_t size, size_t alignment, const char* name) {
    if (size >= alignment && size <= kMaxStruct && size % alignment == 0) return Answer();
    return bad(std::string(name) + ".struct_size is " + std::to_string(size) + ", expected sizeof(" + name +
               "); clear the struct and set it first");
}

Answer check_tail(const void* p, size_t known, uint32_t size, const char* name) {
    const unsigned char* bytes = static_cast<const unsigned char*>(p);
    for (size_t i = known; i < size; ++i)
        if (bytes[i] != 0)
            return bad(std::string(name) + " has " + std::to_string(size) + " bytes, this library (ABI " +
                       std::to_string(AUSPEX_ABI_VERSION) + ") knows " + std::to_string(known) + ", and byte " +
                       std::to_string(i) + " is not 0; leave newer fields 0, or use a newer library");
    return Answer();
}

Answer check_range(int64_t value, int64_t first, int64_t last, const char* name) {
    if (value >= first && value <= last) return Answer();
    return bad(std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(first) +
               (first == last ? std::string() : ".." + std::to_string(last)));
}

Answer fill_text(std::string_view text, char* to, size_t capacity, size_t* length) {
    AUSPEX_C_TRY(fill(text.data(), text.size(), to, capacity, length, 1, "the buffer"));
    to[text.size()] = '\0';
    return Answer();
}

Answer view_text(const char* p, size_t n, std::string_view* out, const char* name) {
    Span<const char> span;
    AUSPEX_C_TRY(view(p, n, &span, name));
    *out = std::string_view(span.data(), span.size());
    return Answer();
}

Answer need_path(const char* path) { return path != nullptr ? Answer() : bad("path is null; expected a file's name"); }

// ------------------------------------------------------------------------------------------ options

Answer device_options(const auspex_device_options& from, const std::shared_ptr<Host>& host, DeviceOptions* to) {
    AUSPEX_C_TRY(check_range(from.kind, AUSPEX_KIND_BEST, AUSPEX_KIND_VULKAN, "kind"));
    AUSPEX_C_TRY(check_range(from.gpu, 0, INT32_MAX, "gpu"));
    AUSPEX_C_TRY(check_range(from.cpu_path, AUSPEX_CPU_BEST, AUSPEX_CPU_NEON, "cpu_path"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_device_options.reserved"));
    AUSPEX_C_TRY(check_range(from.reserved2, 0, 0, "auspex_device_options.reserved2"));
    AUSPEX_C_TRY(check_range(from.reserved3, 0, 0, "auspex_device_options.reserved3"));
    AUSPEX_C_TRY(check_range(from.barriers_only, 0, 1, "barriers_only"));
    if ((from.allocate == nullptr) != (from.release == nullptr))
        return bad("one of allocate and release is null; expected both, or neither");
    if (from.memory_limit_bytes > SIZE_MAX) return bad("memory_limit_bytes is beyond the address space");
    Span<const std::byte> cache;
    AUSPEX_C_TRY(
        view(static_cast<const std::byte*>(from.pipeline_cache), from.n_pipeline_cache, &cache, "pipeline_cache"));
    to->kind = static_cast<Kind>(from.kind);
    to->vulkan_index = from.gpu - 1;
    to->cpu_path = static_cast<CpuPath>(from.cpu_path);
    to->n_thread = from.n_thread;
    to->memory_limit_bytes = static_cast<size_t>(from.memory_limit_bytes);
    to->pipeline_cache = cache;
    to->max_submit_ms = from.max_submit_ms;
    to->barriers_only = from.barriers_only != 0;
    *host = {from.allocate, from.release, from.allocator_user, from.run_jobs, from.jobs_user};
    if (from.run_jobs != nullptr) {
        to->jobs.user = host.get();
        to->jobs.run = [](void* user, uint32_t n, void (*task)(void* context, uint32_t i), void* context) {
            const Host& h = *static_cast<const Host*>(user);
            h.run_jobs(n, task, context, h.jobs_user);
        };
    }
    if (from.allocate != nullptr) {
        to->allocator.user = host.get();
        to->allocator.alloc = [](void* user, size_t bytes, size_t alignment) {
            const Host& h = *static_cast<const Host*>(user);
            return h.allocate(bytes, alignment, h.user);
        };
        to->allocator.free = [](void* user, void* p, size_t bytes, size_t alignment) {
            const Host& h = *static_cast<const Host*>(user);
            h.release(p, bytes, alignment, h.user);
        };
    }
    if (from.log != nullptr)
        to->log = [log = from.log, user = from.log_user](LogLevel level, std::string_view line) {
            log(level == LogLevel::warning ? AUSPEX_LOG_WARNING : AUSPEX_LOG_INFO, std::string(line).c_str(),
                line.size(), user);
        };
    return Answer();
}

/// The progress callback of options that have one.
template <class From, class To>
void set_progress(const From& from, To* to) {
    if (from.progress == nullptr) return;
    to->progress = [ask = from.progress, user = from.progress_user](const char* what, float fraction) {
        return ask(what, fraction, user) == 0;
    };
}

Answer load_options(const auspex_load_options* given, LoadOptions* to) {
    auspex_load_options from;
    AUSPEX_C_TRY(read(given, &from, "auspex_load_options"));
    AUSPEX_C_TRY(check_range(from.without_mtp, 0, 1, "without_mtp"));
    AUSPEX_C_TRY(check_range(from.copy_file, 0, 1, "copy_file"));
    AUSPEX_C_TRY(check_range(from.reserved[0] | from.reserved[1], 0, 0, "auspex_load_options.reserved"));
    AUSPEX_C_TRY(check_range(from.reserved2, 0, 0, "auspex_load_options.reserved2"));
    AUSPEX_C_TRY(check_range(from.host_expert_layers, -1, INT32_MAX, "host_expert_layers"));
    to->mtp = from.without_mtp == 0;
    to->copy_file = from.copy_file != 0;
    to->host_expert_layers = from.host_expert_layers == 0  ? -1
                             : from.host_expert_layers < 0 ? 0
                                                           : from.host_expert_layers;
    if (from.mtp_file != nullptr) to->mtp_file = from.mtp_file;
    if (from.packed_file != nullptr) to->packed_file = from.packed_file;
    set_progress(from, to);
    return Answer();
}

Answer session_options(const auspex_session_options* given, SessionOptions* to) {
    auspex_session_options from;
    AUSPEX_C_TRY(read(given, &from, "auspex_session_options"));
    AUSPEX_C_TRY(check_range(from.kv_k, AUSPEX_KV_F16, AUSPEX_KV_F32, "kv_k"));
    AUSPEX_C_TRY(check_range(from.kv_v, AUSPEX_KV_F16, AUSPEX_KV_F32, "kv_v"));
    AUSPEX_C_TRY(check_range(from.draft, AUSPEX_DRAFT_OFF, AUSPEX_DRAFT_BEST, "draft"));
    AUSPEX_C_TRY(check_range(from.draft_depth, -1, int64_t{kMaxDraft}, "draft_depth"));
    AUSPEX_C_TRY(check_range(from.exact_prompts, 0, 1, "exact_prompts"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_session_options.reserved"));
    to->n_context = from.n_context;
    to->exact_prompts = from.exact_prompts != 0;
    if (from.n_ubatch != 0) to->n_ubatch = from.n_ubatch;
    to->run_ahead = from.run_ahead;
    to->kv_k = static_cast<KvType>(from.kv_k);
    to->kv_v = static_cast<KvType>(from.kv_v);
    to->draft.source = static_cast<Draft>(from.draft);
    to->draft.depth = from.draft_depth == 0 ? -1 : from.draft_depth < 0 ? 0 : from.draft_depth;
    to->kv_budget_bytes = from.kv_budget_bytes;
    if (from.checkpoint_bytes != 0)
        to->checkpoint_bytes = from.checkpoint_bytes == AUSPEX_NO_CHECKPOINTS ? 0 : from.checkpoint_bytes;
    if (from.windows != nullptr) AUSPEX_C_TRY(parse_windows(from.windows).get(to->windows));
    set_progress(from, to);
    return Answer();
}

static Answer out_of_range(const char* name, float found, const char* expected) {
    char number[32];
    for (int digits = 6; digits <= 9; ++digits) {  // as few as read back as the value
        std::snprintf(number, sizeof number, "%.*g", digits, static_cast<double>(found));
        if (std::strtof(number, nullptr) == found) break;
    }
    return bad(std::string("sampling.") + name + " is " + number + ", expected " + expected);
}

Answer sampling(const auspex_sampling* given, Sampling* to) {
    auspex_sampling from;
    AUSPEX_C_TRY(read(given, &from, "auspex_sampling"));
    AUSPEX_C_TRY(check_range(from.reserved, 0, 0, "auspex_sampling.reserved"));
    if (from.grammar != nullptr) {
        AUSPEX_C_TRY(need(from.grammar, "constraint"));
        to->constraint = from.grammar->constraint;
    }
    if (from.constrained_from > SIZE_MAX - 1) return bad("constrained_from is beyond the address space");
    if (from.constrained_from != 0) to->constrained_from = static_cast<size_t>(from.constrained_from - 1);
    Span<const auspex_logit_bias> bias;
    AUSPEX_C_TRY(view(from.logit_bias, from.n_logit_bias, &bias, "logit_bias"));
    for (const auspex_logit_bias& b : bias) to->logit_bias.push_back({b.id, b.bias});
    to->temperature = from.temperature;
    to->top_k = from.top_k;
    // Here, other than in Sampling, 0 is a value of these two. Written so that a NaN fails too.
    if (!(from.top_p >= 0 && from.top_p <= 1)) return out_of_range("top_p", from.top_p, "0 (all) or up to 1");
    if (!(from.repeat_penalty >= 0 && from.repeat_penalty <= 100))
        return out_of_range("repeat_penalty", from.repeat_penalty, "0 (none) or up to 100");
    if (from.top_p != 0) to->top_p = from.top_p;
    to->min_p = from.min_p;
    if (from.repeat_penalty != 0) to->repeat_penalty = from.repeat_penalty;
    to->frequency_penalty = from.frequency_penalty;
    to->presence_penalty = from.presence_penalty;
    if (from.penalty_window != 0) to->penalty_window = from.penalty_window;
    to->seed = from.seed;
    return Answer();
}

Answer chat_request(const char* json, size_t n_json, ChatRequest* to) {
    std::string_view text;
    AUSPEX_C_TRY(view_text(json, n_json, &text, "json"));
    return ChatRequest::from_json(text).get(*to);
}

// --------------------------------------------------------------------------------- running calls

Running::Running(auspex_session* session) : session_(session) {
    const std::lock_guard<std::mutex> hold(session->lock);
    runs_ = !session->running;
    session->running = true;
}

Running::~Running() {
    if (!runs_) return;
    const std::lock_guard<std::mutex> hold(session_->lock);
    session_->running = false;
    if (session_->cancelled) session_->session.cancel(false);
    session_->cancelled = false;
}

namespace {
Answer in_use(const char* name) {
    return bad(std::string("a call runs on this ") + name + ", on another thread or around a callback; wait for it");
}
}  // namespace

Answer Running::answer() const { return runs_ ? Answer() : in_use("session"); }

Answer Turn::answer(const char* name) const { return mine_ ? Answer() : in_use(name); }

bool Running::cancelled() const {
    const std::lock_guard<std::mutex> hold(session_->lock);
    return session_->cancelled;
}

Answer Running::done() const {
    return cancelled() ? Answer(AUSPEX_CANCELLED, "cancelled during the last step; its rows are computed") : Answer();
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// ------------------------------------------------------------------------- src/capi/capi_model.cpp

// capi/capi_model: devices, models, plans and streams of auspex.h.

using auspex::capi::Answer;
using auspex::capi::bad;
using auspex::capi::call;
using auspex::capi::need;

uint32_t auspex_abi_version(void) { return AUSPEX_ABI_VERSION; }

const char* auspex_version_string(void) { return AUSPEX_VERSION; }

const char* auspex_code_name(auspex_code code) {
    static const char* const names[] = {"ok",          "bad_argument", "bad_file",      "unsupported",
                                        "not_found",   "io_error",     "out_of_memory", "no_device",
                                        "device_lost", "cancelled",    "context_full",  "buffer_too_small"};
    return code >= 0 && code <= AUSPEX_BUFFER_TOO_SMALL ? names[code] : "unknown";
}

// ------------------------------------------------------------------------------------------ devices

auspex_code auspex_device_options_init(auspex_device_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_device_open(const auspex_device_options* given, auspex_device** device, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(device, "device"));
        auspex_device_options from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_device_options"));
        auto made = std::make_unique<auspex_device>();
        made->host = std::make_shared<auspex::capi::Host>();
        auspex::DeviceOptions options;
        AUSPEX_C_TRY(auspex::capi::device_options(from, made->host, &options));
        auspex_vulkan_handles borrow;
        AUSPEX_C_TRY(auspex::capi::read(from.borrow, &borrow, "auspex_vulkan_handles"));
        auspex::VulkanHandles handles;
        if (from.borrow != nullptr) {
            handles.instance = borrow.instance;
            handles.physical_device = borrow.physical_device;
            handles.device = borrow.device;
            handles.queue = borrow.queue;
            handles.queue_family = borrow.queue_family;
            handles.get_instance_proc_addr = borrow.get_instance_proc_addr;
            if ((borrow.lock_queue == nullptr) != (borrow.unlock_queue == nullptr))
                return bad("one of lock_queue and unlock_queue is null; expected both, or neither");
            if (borrow.lock_queue != nullptr) {
                handles.lock_queue = [f = borrow.lock_queue, user = borrow.user] { f(user); };
                handles.unlock_queue = [f = borrow.unlock_queue, user = borrow.user] { f(user); };
            }
            handles.enabled_features = borrow.enabled_features;
            AUSPEX_C_TRY(auspex::capi::view(borrow.enabled_extensions, borrow.n_enabled_extensions,
                                            &handles.enabled_extensions, "enabled_extensions"));
            options.borrow = &handles;
        }
        AUSPEX_C_TRY(auspex::Device::open(options).get(made->device));
        *device = made.release();
        return Answer();
    });
}

auspex_code auspex_device_list(const auspex_device_options* given, auspex_on_device on_device, void* user,
                               auspex_error* error) {
    return call(error, [&]() -> Answer {
        if (on_device == nullptr) return bad("on_device is null; expected a function");
        auspex_device_options from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_device_options"));
        const auto host = std::make_shared<auspex::capi::Host>();
        auspex::DeviceOptions options;
        AUSPEX_C_TRY(auspex::capi::device_options(from, host, &options));
        std::vector<auspex::DeviceEntry> all;
        AUSPEX_C_TRY(auspex::Device::list(options).get(all));
        for (const auspex::DeviceEntry& one : all) {
            const Answer status = one.status;
            auspex_device_entry entry = {};
            entry.struct_size = sizeof entry;
            entry.kind = static_cast<int32_t>(one.kind);
            entry.gpu = one.vulkan_index + 1;
            entry.code = status.code;
            entry.name = one.name.c_str();
            entry.text = status.text.c_str();
            if (on_device(&entry, user) != 0) return Answer(AUSPEX_CANCELLED, "cancelled by on_device");
        }
        return Answer();
    });
}

void auspex_device_free(auspex_device* device) {
    if (auspex::capi::is(device)) delete device;
}

int32_t auspex_device_kind(const auspex_device* device) {
    return auspex::capi::is(device) ? static_cast<int32_t>(device->device.kind()) : int32_t{AUSPEX_KIND_BEST};
}

auspex_code auspex_device_name(const auspex_device* device, char* text, size_t capacity, size_t* length,
                               auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::string name = device->device.name();
        AUSPEX_C_TRY(auspex::capi::need_memory(!name.empty()));
        return auspex::capi::fill_text(name, text, capacity, length);
    });
}

auspex_code auspex_device_report(const auspex_device* device, char* text, size_t capacity, size_t* length,
                                 auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::string report = device->device.report();
        AUSPEX_C_TRY(auspex::capi::need_memory(!report.empty()));
        return auspex::capi::fill_text(report, text, capacity, length);
    });
}

auspex_code auspex_device_pipeline_cache(const auspex_device* device, void* bytes, size_t capacity, size_t* length,
                                         auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        const std::vector<std::byte> cache = device->device.pipeline_cache();
        return auspex::capi::fill(cache.data(), cache.size(), static_cast<std::byte*>(bytes), capacity, length, 0,
                                  "the buffer");
    });
}

// ------------------------------------------------------------------------------------------- models

auspex_code auspex_load_options_init(auspex_load_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// load: loads the model with these options. model: passed need_output().
template <class F>
Answer load_model(const auspex_device* device, const auspex_load_options* given, auspex_model** model, F load) {
    AUSPEX_C_TRY(need(device, "device"));
    LoadOptions options;
    AUSPEX_C_TRY(load_options(given, &options));
    auto made = std::make_unique<auspex_model>();
    made->host = device->host;
    AUSPEX_C_TRY(load(options).get(made->model));
    *model = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_model_load(const auspex_device* device, const char* path, const auspex_load_options* options,
                              auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, path, o);
        });
    });
}

auspex_code auspex_model_load_memory(const auspex_device* device, const void* bytes, size_t n_bytes,
                                     const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        auspex::Span<const std::byte> file;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(bytes), n_bytes, &file, "bytes"));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, file, o);
        });
    });
}

auspex_code auspex_model_load_file(const auspex_device* device, intptr_t file, uint64_t offset, uint64_t n_bytes,
                                   const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, auspex::FileRange{file, offset, n_bytes}, o);
        });
    });
}

auspex_code auspex_model_load_reader(const auspex_device* device, const auspex_reader* given,
                                     const auspex_load_options* options, auspex_model** model, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(model, "model"));
        if (given == nullptr) return auspex::capi::bad("reader is null; expected an auspex_reader");
        auspex_reader from;
        AUSPEX_C_TRY(auspex::capi::read(given, &from, "auspex_reader"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.reserved, 0, 0, "auspex_reader.reserved"));
        auspex::FileReader reader;
        reader.bytes = from.n_bytes;
        if (from.read != nullptr)
            reader.read = [&from](uint64_t at, void* to, size_t n) { return from.read(at, to, n, from.user); };
        return auspex::capi::load_model(device, options, model, [&](const auspex::LoadOptions& o) {
            return auspex::Model::load(device->device, reader, o);
        });
    });
}

void auspex_model_free(auspex_model* model) {
    if (auspex::capi::is(model)) delete model;
}

auspex_code auspex_model_get_info(const auspex_model* model, auspex_model_info* info, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_model_info", true));
        const auspex::ModelInfo& from = model->model.info();
        auspex_model_info to = {};
        to.n_layer = from.n_layer;
        to.n_attention = from.n_attention;
        to.n_mtp = from.n_mtp;
        to.d_model = from.d_model;
        to.n_vocab = from.n_vocab;
        to.n_context = from.n_context;
        to.n_parameter = from.n_parameter;
        to.file_bytes = from.file_bytes;
        to.weight_bytes = from.weight_bytes;
        to.architecture = from.architecture.c_str();
        to.name = from.name.c_str();
        to.chat_note = from.chat_note.c_str();
        auspex::capi::write(info, to);
        return Answer();
    });
}

auspex_code auspex_encode(const auspex_model* model, const char* text, size_t n_text, uint32_t flags, int32_t* ids,
                          size_t capacity, size_t* n_ids, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL | AUSPEX_BEGIN, "flags"));
        std::string_view all;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &all, "text"));
        auspex::EncodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        options.begin = (flags & AUSPEX_BEGIN) != 0;
        std::vector<auspex::Token> found;
        AUSPEX_C_TRY(model->model.encode(all, options).get(found));
        return auspex::capi::fill(found.data(), found.size(), ids, capacity, n_ids, 0, "ids");
    });
}

auspex_code auspex_decode(const auspex_model* model, const int32_t* ids, size_t n_ids, uint32_t flags, char* text,
                          size_t capacity, size_t* length, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL, "flags"));
        auspex::Span<const auspex::Token> all;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &all, "ids"));
        auspex::DecodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        std::string found;
        AUSPEX_C_TRY(model->model.decode(all, options).get(found));
        return auspex::capi::fill_text(found, text, capacity, length);
    });
}

int32_t auspex_is_end(const auspex_model* model, int32_t id) {
    return auspex::capi::is(model) && model->model.is_end(id) ? 1 : 0;
}

// -------------------------------------------------------------------------------------------- plans

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// make: the plan for these options.
template <class F>
Answer make_plan(const auspex_session_options* given, auspex_plan** plan, F make) {
    SessionOptions options;
    AUSPEX_C_TRY(session_options(given, &options));
    auto made = std::make_unique<auspex_plan>();
    AUSPEX_C_TRY(make(options).get(made->plan));
    *plan = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_plan_model(const auspex_model* model, const auspex_session_options* options, auspex_plan** plan,
                              auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(plan, "plan"));
        AUSPEX_C_TRY(need(model, "model"));
        return auspex::capi::make_plan(
            options, plan, [&](const auspex::SessionOptions& o) { return auspex::Session::plan(model->model, o); });
    });
}

auspex_code auspex_plan_file(const auspex_device* device, const char* path, const auspex_session_options* options,
                             const auspex_load_options* load, auspex_plan** plan, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(plan, "plan"));
        AUSPEX_C_TRY(need(device, "device"));
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        auspex::LoadOptions load_options;
        AUSPEX_C_TRY(auspex::capi::load_options(load, &load_options));
        return auspex::capi::make_plan(options, plan, [&](const auspex::SessionOptions& o) {
            return auspex::Session::plan(device->device, path, o, load_options);
        });
    });
}

auspex_code auspex_plan_get_totals(const auspex_plan* plan, auspex_plan_totals* totals, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(totals, "auspex_plan_totals", true));
        const auspex::MemoryPlan& from = plan->plan;
        auspex_plan_totals to = {};
        to.fits = from.fits ? 1 : 0;
        to.n_item = static_cast<uint32_t>(from.items.size());
        to.n_alternative = static_cast<uint32_t>(from.alternatives.size());
        to.weight_bytes = from.weight_bytes;
        to.session_bytes = from.session_bytes;
        to.file_bytes = from.file_bytes;
        to.total_bytes = from.total_bytes;
        to.pinned_bytes = from.pinned_bytes;
        to.checkpoint_bytes = from.checkpoint_bytes;
        to.kv_token_bytes = from.kv_token_bytes;
        to.limit_bytes = from.limit_bytes;
        auspex::capi::write(totals, to);
        return Answer();
    });
}

auspex_code auspex_plan_get_item(const auspex_plan* plan, uint32_t index, auspex_plan_item* item, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(item, "auspex_plan_item", true));
        const std::vector<auspex::MemoryItem>& items = plan->plan.items;
        if (index >= items.size())
            return Answer(AUSPEX_NOT_FOUND, "item " + std::to_string(index) + " of " + std::to_string(items.size()));
        auspex_plan_item to = {};
        to.layer = items[index].layer;
        to.place = static_cast<int32_t>(items[index].place);
        to.bytes = items[index].bytes;
        to.what = items[index].what.c_str();
        auspex::capi::write(item, to);
        return Answer();
    });
}

auspex_code auspex_plan_get_alternative(const auspex_plan* plan, uint32_t index, auspex_plan_item* item,
                                        auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(plan, "plan"));
        AUSPEX_C_TRY(auspex::capi::check_output(item, "auspex_plan_item", true));
        const std::vector<auspex::MemoryAlternative>& all = plan->plan.alternatives;
        if (index >= all.size())
            return Answer(AUSPEX_NOT_FOUND,
                          "alternative " + std::to_string(index) + " of " + std::to_string(all.size()));
        auspex_plan_item to = {};
        to.layer = -1;
        to.fits = all[index].fits ? 1 : 0;
        to.bytes = all[index].total_bytes;
        to.what = all[index].what.c_str();
        auspex::capi::write(item, to);
        return Answer();
    });
}

void auspex_plan_free(auspex_plan* plan) {
    if (auspex::capi::is(plan)) delete plan;
}

// -------------------------------------------------------------------- src/capi/capi_constraint.cpp

// capi/capi_constraint: constraints of the C interface.

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// Whether the prompt of the request ends with a thinking that is closed. A request of tools alone has no prompt.
bool closes_thinking(const Model& model, const ChatRequest& request) {
    ChatPrompt prompt;
    return model.render(request).get(prompt).ok() && prompt.closed_thinking;
}

Answer make_constraint(const Model& model, const Result<Grammar>& grammar, auspex_constraint** to) {
    AUSPEX_C_TRY(grammar.status());
    auto made = std::make_unique<auspex_constraint>();
    AUSPEX_C_TRY(Constraint::create(model, grammar.value()).get(made->constraint));
    for (const std::string& line : grammar.value().ignored()) made->ignored += line + "\n";
    *to = made.release();
    return Answer();
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_constraint_create(const auspex_model* model, int32_t kind, const char* text, size_t n_text,
                                     auspex_constraint** constraint, auspex_error* error) {
    using auspex::Grammar;
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_range(kind, AUSPEX_CONSTRAINT_JSON_SCHEMA, AUSPEX_CONSTRAINT_REGEX, "kind"));
        std::string_view from;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &from, "text"));
        return auspex::capi::make_constraint(model->model,
                                             kind == AUSPEX_CONSTRAINT_JSON_SCHEMA ? Grammar::from_json_schema(from)
                                             : kind == AUSPEX_CONSTRAINT_GBNF      ? Grammar::from_gbnf(from)
                                                                                   : Grammar::from_regex(from),
                                             constraint);
    });
}

auspex_code auspex_schema_options_init(auspex_schema_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_constraint_for_schema(const auspex_model* model, const char* text, size_t n_text,
                                         const auspex_schema_options* options, auspex_constraint** constraint,
                                         auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        auspex_schema_options from;
        AUSPEX_C_TRY(auspex::capi::read(options, &from, "auspex_schema_options"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.ignore_unsupported, 0, 1, "ignore_unsupported"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.any_order, 0, 1, "any_order"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.no_white_space, 0, 1, "no_white_space"));
        std::string_view schema;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &schema, "text"));
        auspex::SchemaOptions to;
        to.ignore_unsupported = from.ignore_unsupported != 0;
        to.any_order = from.any_order != 0;
        to.white_space = from.no_white_space == 0;
        return auspex::capi::make_constraint(model->model, auspex::Grammar::from_json_schema(schema, to), constraint);
    });
}

auspex_code auspex_tool_options_init(auspex_tool_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_constraint_for_tools(const auspex_model* model, const char* json, size_t n_json,
                                        const auspex_tool_options* options, auspex_constraint** constraint,
                                        auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need(model, "model"));
        auspex_tool_options from;
        AUSPEX_C_TRY(auspex::capi::read(options, &from, "auspex_tool_options"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.required, 0, 1, "required"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.inside_thinking, 0, 1, "inside_thinking"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.one_call, 0, 1, "one_call"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.ignore_unsupported, 0, 1, "ignore_unsupported"));
        AUSPEX_C_TRY(auspex::capi::check_range(from.any_order, 0, 1, "any_order"));
        if (from.tool != nullptr && *from.tool == '\0')
            return auspex::capi::bad("tool is empty, expected the name of a tool, or null for any");
        std::string_view answer;
        AUSPEX_C_TRY(auspex::capi::view_text(from.answer, from.n_answer, &answer, "answer"));
        auspex::ChatRequest request;
        AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auspex::ToolOptions to;
        to.chat_template = model->model.info().chat_template;
        if (from.required != 0) to.choice = auspex::ToolChoice::required;
        if (from.tool != nullptr) to.name = from.tool;
        to.inside_thinking = from.inside_thinking != 0;
        to.parallel = from.one_call == 0;
        to.answer = std::string(answer);
        to.ignore_unsupported = from.ignore_unsupported != 0;
        to.any_order = from.any_order != 0;
        to.closed_thinking = !to.inside_thinking && auspex::capi::closes_thinking(model->model, request);
        return auspex::capi::make_constraint(model->model, auspex::Grammar::from_tools(request.tools, to), constraint);
    });
}

auspex_code auspex_constraint_from_tools(const auspex_model* model, const char* json, size_t n_json, int32_t required,
                                         const char* tool, int32_t inside_thinking, auspex_constraint** constraint,
                                         auspex_error* error) {
    auspex_tool_options options;
    auspex_tool_options_init(&options, sizeof options);
    options.required = required;
    options.tool = tool;
    options.inside_thinking = inside_thinking;
    return auspex_constraint_for_tools(model, json, n_json, &options, constraint, error);
}

auspex_code auspex_constraint_ignored(const auspex_constraint* constraint, char* text, size_t capacity, size_t* length,
                                      auspex_error* error) {
    return auspex::capi::call(error, [&]() -> auspex::capi::Answer {
        AUSPEX_C_TRY(auspex::capi::need(constraint, "constraint"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        return auspex::capi::fill_text(constraint->ignored, text, capacity, length);
    });
}

void auspex_constraint_free(auspex_constraint* constraint) {
    if (auspex::capi::is(constraint)) delete constraint;
}

// ----------------------------------------------------------------------- src/capi/capi_session.cpp

// capi/capi_session: sessions, their files and snapshots of auspex.h.

#include <algorithm>

using auspex::capi::Answer;
using auspex::capi::call;
using auspex::capi::call_session;
using auspex::capi::need;
using auspex::capi::Running;

auspex_code auspex_session_options_init(auspex_session_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_sampling_init(auspex_sampling* sampling, uint32_t struct_size) {
    return auspex::capi::init(sampling, struct_size);
}

auspex_code auspex_session_create(const auspex_model* model, const auspex_session_options* given,
                                  auspex_session** session, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(session, "session"));
        AUSPEX_C_TRY(need(model, "model"));
        auspex::SessionOptions options;
        AUSPEX_C_TRY(auspex::capi::session_options(given, &options));
        auto made = std::make_unique<auspex_session>();
        made->host = model->host;
        made->model = model->model;
        AUSPEX_C_TRY(auspex::Session::create(model->model, options).get(made->session));
        *session = made.release();
        return Answer();
    });
}

void auspex_session_free(auspex_session* session) {
    if (auspex::capi::is(session)) delete session;
}

void auspex_session_cancel(auspex_session* session) {
    if (!auspex::capi::is(session)) return;
    const std::lock_guard<std::mutex> hold(session->lock);
    if (!session->running) return;
    session->cancelled = true;
    session->session.cancel();
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

void write_report(const SyncReport& from, auspex_sync_report* report) {
    auspex_sync_report to = {};
    to.reason = static_cast<int32_t>(from.reason);
    to.rows_computed = from.rows_computed;
    to.rows_reused = from.rows_reused;
    to.diverged_at = from.diverged_at;
    to.checkpoint_row = from.checkpoint_row;
    put_text(from.text, to.text, sizeof to.text);
    write(report, to);
}

void write_file_info(const SessionFile& from, auspex_file_info* info) {
    auspex_file_info to = {};
    to.recovered = from.recovered ? 1 : 0;
    to.n_token = from.n_token;
    to.note_bytes = from.note.size();
    write(info, to);
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_session_sync(auspex_session* session, const int32_t* ids, size_t n_ids, const auspex_mark* marks,
                                size_t n_marks, auspex_sync_report* report, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_output(report, "auspex_sync_report", false));
        auspex::Span<const auspex::Token> history;
        auspex::Span<const auspex_mark> given;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &history, "ids"));
        AUSPEX_C_TRY(auspex::capi::view(marks, n_marks, &given, "marks"));
        std::vector<auspex::Mark> wanted;
        for (const auspex_mark& m : given) {
            AUSPEX_C_TRY(auspex::capi::check_range(m.pinned, 0, 1, "auspex_mark.pinned"));
            AUSPEX_C_TRY(auspex::capi::check_range(m.reserved, 0, 0, "auspex_mark.reserved"));
            wanted.push_back({static_cast<size_t>(std::min<uint64_t>(m.row, SIZE_MAX)), m.pinned != 0});
        }
        auspex::SyncReport done;
        AUSPEX_C_TRY(running.session().sync(history, wanted).get(done));
        auspex::capi::write_report(done, report);
        return running.done();
    });
}

auspex_code auspex_session_next(auspex_session* session, const auspex_sampling* given, int32_t* ids, size_t capacity,
                                size_t* n_ids, auspex_error* error) {
    static_assert(AUSPEX_MAX_TOKENS == auspex::kMaxDraft + 1, "a cycle gives the drafts and one more");
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        if (ids == nullptr || capacity < AUSPEX_MAX_TOKENS) {
            *n_ids = AUSPEX_MAX_TOKENS;
            return Answer(AUSPEX_BUFFER_TOO_SMALL, "ids has room for " + std::to_string(ids == nullptr ? 0 : capacity) +
                                                       ", expected at least AUSPEX_MAX_TOKENS");
        }
        auspex::Sampling sampling;
        AUSPEX_C_TRY(auspex::capi::sampling(given, &sampling));
        auspex::Span<const auspex::Token> tokens;
        AUSPEX_C_TRY(running.session().next(sampling).get(tokens));
        AUSPEX_C_TRY(auspex::capi::fill(tokens.data(), tokens.size(), ids, capacity, n_ids, 0, "ids"));
        if (running.cancelled())
            return Answer(AUSPEX_CANCELLED, "cancelled during the step, whose tokens are in ids and in the history");
        return Answer();
    });
}

auspex_code auspex_session_logits(auspex_session* session, const float** logits, size_t* n_logits,
                                  auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(logits, "logits"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_logits, "n_logits"));
        auspex::Span<const float> all;
        AUSPEX_C_TRY(running.session().logits().get(all));
        *logits = all.data();
        *n_logits = all.size();
        return running.done();
    });
}

auspex_code auspex_session_score(auspex_session* session, const int32_t* ids, size_t n_ids, auspex_on_row on_row,
                                 void* user, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        if (on_row == nullptr) return auspex::capi::bad("on_row is null; expected a function");
        auspex::Span<const auspex::Token> all;
        AUSPEX_C_TRY(auspex::capi::view(ids, n_ids, &all, "ids"));
        bool stopped = false;
        const auspex::Status done = running.session().score(all, [&](size_t row, auspex::Span<const float> logits) {
            if (stopped) return;
            stopped = on_row(row, logits.data(), logits.size(), user) != 0;
            if (stopped) running.session().cancel();
        });
        if (!stopped) return done.ok() ? running.done() : Answer(done);
        running.session().cancel(false);
        return Answer(AUSPEX_CANCELLED, "cancelled by on_row");
    });
}

auspex_code auspex_session_history(auspex_session* session, int32_t* ids, size_t capacity, size_t* n_ids,
                                   auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        const auspex::Span<const auspex::Token> all = running.session().history();
        return auspex::capi::fill(all.data(), all.size(), ids, capacity, n_ids, 0, "ids");
    });
}

auspex_code auspex_session_set_draft_depth(auspex_session* session, int32_t depth, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_range(depth, -1, int64_t{auspex::kMaxDraft}, "depth"));
        return running.session().set_draft_depth(depth == 0 ? -1 : depth < 0 ? 0 : depth);
    });
}

auspex_code auspex_session_get_stats(auspex_session* session, auspex_stats* stats, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::check_output(stats, "auspex_stats", true));
        const auspex::Stats from = running.session().stats();
        auspex_stats to = {};
        to.rows_prefilled = from.rows_prefilled;
        to.rows_decoded = from.rows_decoded;
        to.tokens_sampled = from.tokens_sampled;
        to.prefill_s = from.prefill_s;
        to.decode_s = from.decode_s;
        to.memory_bytes = from.memory_bytes;
        for (const uint64_t n : from.drafted) to.drafted += n;
        for (const uint64_t n : from.accepted) to.accepted += n;
        auspex::capi::write(stats, to);
        return Answer();
    });
}

// ------------------------------------------------------------------------------- forking and moving

auspex_code auspex_session_fork(auspex_session* session, auspex_session** fork, auspex_error* error) {
    if (fork != nullptr) *fork = nullptr;  // also where the session is refused
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(fork, "fork"));
        auto made = std::make_unique<auspex_session>();
        made->host = session->host;
        made->model = session->model;
        AUSPEX_C_TRY(running.session().fork().get(made->session));
        *fork = made.release();
        return Answer();
    });
}

auspex_code auspex_session_move_to(auspex_session* session, const auspex_model* model, auspex_sync_report* report,
                                   auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_output(report, "auspex_sync_report", false));
        auspex::SyncReport done;
        AUSPEX_C_TRY(running.session().move_to(model->model).get(done));
        session->model = model->model;  // the old one is freed before its memory
        session->host = model->host;
        auspex::capi::write_report(done, report);
        return Answer();
    });
}

// ------------------------------------------------------------------------------- files and snapshots

auspex_code auspex_session_save(auspex_session* session, const char* path, const void* note, size_t n_note,
                                auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        auspex::Span<const std::byte> bytes;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(note), n_note, &bytes, "note"));
        return running.session().save(path, bytes).status();
    });
}

auspex_code auspex_session_load(auspex_session* session, const char* path, auspex_file_info* info,
                                auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_file_info", false));
        auspex::SessionFile file;
        AUSPEX_C_TRY(running.session().load(path).get(file));
        auspex::capi::write_file_info(file, info);
        return Answer();
    });
}

auspex_code auspex_read_session_file(const char* path, auspex_file_info* info, void* note, size_t capacity,
                                     size_t* n_note, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_path(path));
        AUSPEX_C_TRY(auspex::capi::check_output(info, "auspex_file_info", false));
        AUSPEX_C_TRY(auspex::capi::need_output(n_note, "n_note"));
        auspex::SessionFile file;
        AUSPEX_C_TRY(auspex::read_session_file(path).get(file));
        auspex::capi::write_file_info(file, info);
        return auspex::capi::fill(file.note.data(), file.note.size(), static_cast<std::byte*>(note), capacity, n_note,
                                  0, "note");
    });
}

auspex_code auspex_snapshot_take(auspex_session* session, auspex_snapshot** snapshot, auspex_error* error) {
    if (snapshot != nullptr) *snapshot = nullptr;  // also where the session is refused
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(snapshot, "snapshot"));
        auto made = std::make_unique<auspex_snapshot>();
        AUSPEX_C_TRY(running.session().save().get(made->snapshot));
        *snapshot = made.release();
        return Answer();
    });
}

auspex_code auspex_snapshot_from_bytes(const void* bytes, size_t n_bytes, auspex_snapshot** snapshot,
                                       auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(snapshot, "snapshot"));
        auspex::Span<const std::byte> all;
        AUSPEX_C_TRY(auspex::capi::view(static_cast<const std::byte*>(bytes), n_bytes, &all, "bytes"));
        auto made = std::make_unique<auspex_snapshot>();
        made->snapshot.bytes.assign(all.begin(), all.end());
        *snapshot = made.release();
        return Answer();
    });
}

auspex_code auspex_snapshot_bytes(const auspex_snapshot* snapshot, const void** bytes, size_t* n_bytes,
                                  uint64_t* n_token, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(snapshot, "snapshot"));
        AUSPEX_C_TRY(auspex::capi::need_output(bytes, "bytes"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_bytes, "n_bytes"));
        *bytes = snapshot->snapshot.bytes.data();
        *n_bytes = snapshot->snapshot.bytes.size();
        if (n_token != nullptr) *n_token = snapshot->snapshot.n_token;
        return Answer();
    });
}

auspex_code auspex_snapshot_restore(const auspex_snapshot* snapshot, auspex_session* session, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        AUSPEX_C_TRY(need(snapshot, "snapshot"));
        return running.session().restore(snapshot->snapshot);
    });
}

void auspex_snapshot_free(auspex_snapshot* snapshot) {
    if (auspex::capi::is(snapshot)) delete snapshot;
}

// -------------------------------------------------------------------------- src/capi/capi_chat.cpp

// capi/capi_chat: prompts, text streams, replies and chat of auspex.h.

using auspex::capi::Answer;
using auspex::capi::call;
using auspex::capi::call_session;
using auspex::capi::need;
using auspex::capi::Running;

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

auspex_event event_of(int32_t type, const std::string& text) {
    auspex_event e = {};
    e.struct_size = sizeof e;
    e.type = type;
    e.text = text.c_str();
    e.n_text = text.size();
    return e;
}

int32_t type_of(ReplyEvent::Kind kind) {
    switch (kind) {
        case ReplyEvent::Kind::reasoning: return AUSPEX_EVENT_REASONING;
        case ReplyEvent::Kind::text: return AUSPEX_EVENT_TEXT;
        case ReplyEvent::Kind::call_begin: return AUSPEX_EVENT_CALL_BEGIN;
        case ReplyEvent::Kind::call_arguments: return AUSPEX_EVENT_CALL_ARGUMENTS;
        case ReplyEvent::Kind::call_end: return AUSPEX_EVENT_CALL_END;
        case ReplyEvent::Kind::call_dropped: break;
    }
    return AUSPEX_EVENT_CALL_DROPPED;
}

Answer read_stops(const char* const* stops, size_t n_stops, std::vector<std::string>* to) {
    Span<const char* const> all;
    AUSPEX_C_TRY(view(stops, n_stops, &all, "stops"));
    for (const char* stop : all) {
        if (stop == nullptr) return bad("a text in stops is null");
        to->emplace_back(stop);
    }
    return Answer();
}

/// The prompt of a request.
struct Prompt {
    ChatRequest request;
    bool inside_thinking = false;
    std::vector<Token> ids;
    std::vector<Mark> marks;

    Answer make(const Model& model, const char* json, size_t n_json) {
        AUSPEX_C_TRY(chat_request(json, n_json, &request));
        ChatPrompt prompt;
        AUSPEX_C_TRY(model.render(request).get(prompt));
        inside_thinking = prompt.inside_thinking;
        return model.encode(prompt, &marks).get(ids);
    }
};

}  // namespace

Answer say_events(const std::vector<ReplyEvent>& events, auspex_on_event on_event, void* user) {
    for (const ReplyEvent& from : events) {
        auspex_event e = event_of(type_of(from.kind), from.text);
        e.call = static_cast<int32_t>(from.i_call);
        if (on_event(&e, user) != 0) return Answer(AUSPEX_CANCELLED, "cancelled by on_event");
    }
    return Answer();
}

}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

// ------------------------------------------------------------------------------------------ prompts

auspex_code auspex_render(const auspex_model* model, const char* json, size_t n_json, char* text, size_t capacity,
                          size_t* length, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        auspex::ChatRequest request;
        AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auspex::ChatPrompt prompt;
        AUSPEX_C_TRY(model->model.render(request).get(prompt));
        return auspex::capi::fill_text(prompt.text(), text, capacity, length);
    });
}

auspex_code auspex_render_ids(const auspex_model* model, const char* json, size_t n_json, int32_t* ids, size_t capacity,
                              size_t* n_ids, auspex_mark* marks, size_t mark_capacity, size_t* n_marks,
                              int32_t* inside_thinking, auspex_error* error) {
    if (n_marks != nullptr) *n_marks = 0;  // also where the call is refused
    if (inside_thinking != nullptr) *inside_thinking = 0;
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::need_output(n_ids, "n_ids"));
        auspex::capi::Prompt prompt;
        AUSPEX_C_TRY(prompt.make(model->model, json, n_json));
        std::vector<auspex_mark> found;
        for (const auspex::Mark& m : prompt.marks) found.push_back({m.row, m.pinned ? 1u : 0u, 0});
        if (inside_thinking != nullptr) *inside_thinking = prompt.inside_thinking ? 1 : 0;
        size_t n_found = 0;
        if (n_marks == nullptr) n_marks = &n_found;
        *n_marks = found.size();
        *n_ids = prompt.ids.size();
        if (marks != nullptr && mark_capacity < found.size())
            return auspex::capi::fill(found.data(), found.size(), marks, mark_capacity, n_marks, 0, "marks");
        AUSPEX_C_TRY(auspex::capi::fill(prompt.ids.data(), prompt.ids.size(), ids, capacity, n_ids, 0, "ids"));
        if (marks == nullptr) return Answer();
        return auspex::capi::fill(found.data(), found.size(), marks, mark_capacity, n_marks, 0, "marks");
    });
}

// ------------------------------------------------------------------------------------------ streams

auspex_code auspex_stream_create(const auspex_model* model, const char* const* stops, size_t n_stops, uint32_t flags,
                                 auspex_stream** stream, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(stream, "stream"));
        AUSPEX_C_TRY(need(model, "model"));
        AUSPEX_C_TRY(auspex::capi::check_range(flags, 0, AUSPEX_SPECIAL, "flags"));
        std::vector<std::string> texts;
        AUSPEX_C_TRY(auspex::capi::read_stops(stops, n_stops, &texts));
        auspex::DecodeOptions options;
        options.special = (flags & AUSPEX_SPECIAL) != 0;
        auto made = std::make_unique<auspex_stream>();
        made->host = model->host;
        made->stream = auspex::TextStream(model->model, std::move(texts), options);
        AUSPEX_C_TRY(auspex::capi::need_memory(made->stream));
        *stream = made.release();
        return Answer();
    });
}

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

template <class F>
auspex_code stream_text(auspex_stream* stream, const char** text, size_t* n_text, auspex_error* error, F make) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(stream, "stream"));
        const Turn turn(stream->busy);
        AUSPEX_C_TRY(turn.answer("stream"));
        AUSPEX_C_TRY(need_output(text, "text"));
        *text = "";
        AUSPEX_C_TRY(need_output(n_text, "n_text"));
        AUSPEX_C_TRY(make().get(stream->text));
        *text = stream->text.c_str();
        *n_text = stream->text.size();
        return Answer();
    });
}

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_stream_push(auspex_stream* stream, int32_t id, const char** text, size_t* n_text,
                               auspex_error* error) {
    return auspex::capi::stream_text(stream, text, n_text, error, [&] { return stream->stream.push(id); });
}

auspex_code auspex_stream_finish(auspex_stream* stream, const char** text, size_t* n_text, auspex_error* error) {
    return auspex::capi::stream_text(stream, text, n_text, error, [&] { return stream->stream.finish(); });
}

int32_t auspex_stream_stopped(const auspex_stream* stream) {
    if (!auspex::capi::is(stream)) return 0;
    const auspex::capi::Turn turn(stream->busy);
    return turn.mine() && stream->stream.stopped() ? 1 : 0;
}

void auspex_stream_free(auspex_stream* stream) {
    if (auspex::capi::is(stream)) delete stream;
}

// ------------------------------------------------------------------------------------------ replies

auspex_code auspex_reply_create(int32_t inside_thinking, const char* json, size_t n_json, auspex_reply** reply,
                                auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(auspex::capi::need_output(reply, "reply"));
        AUSPEX_C_TRY(auspex::capi::check_range(inside_thinking, 0, 1, "inside_thinking"));
        auspex::ChatRequest request;
        if (json != nullptr || n_json > 0) AUSPEX_C_TRY(auspex::capi::chat_request(json, n_json, &request));
        auto made = std::make_unique<auspex_reply>();
        made->stream = auspex::ReplyStream(inside_thinking != 0, request.tools);
        AUSPEX_C_TRY(auspex::capi::need_memory(made->stream));
        *reply = made.release();
        return Answer();
    });
}

auspex_code auspex_reply_push(auspex_reply* reply, const char* text, size_t n_text, auspex_on_event on_event,
                              void* user, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        std::string_view piece;
        AUSPEX_C_TRY(auspex::capi::view_text(text, n_text, &piece, "text"));
        std::vector<auspex::ReplyEvent> events;
        AUSPEX_C_TRY(reply->stream.push(piece).get(events));
        return auspex::capi::say_events(events, on_event, user);
    });
}

auspex_code auspex_reply_finish(auspex_reply* reply, auspex_on_event on_event, void* user, auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        std::vector<auspex::ReplyEvent> events;
        AUSPEX_C_TRY(reply->stream.finish().get(events));
        return auspex::capi::say_events(events, on_event, user);
    });
}

auspex_code auspex_reply_message(const auspex_reply* reply, char* text, size_t capacity, size_t* length,
                                 auspex_error* error) {
    return call(error, [&]() -> Answer {
        AUSPEX_C_TRY(need(reply, "reply"));
        const auspex::capi::Turn turn(reply->busy);
        AUSPEX_C_TRY(turn.answer("reply"));
        AUSPEX_C_TRY(auspex::capi::need_output(length, "length"));
        std::string message;
        AUSPEX_C_TRY(auspex::to_json(reply->stream.reply()).get(message));
        return auspex::capi::fill_text(message, text, capacity, length);
    });
}

void auspex_reply_free(auspex_reply* reply) {
    if (auspex::capi::is(reply)) delete reply;
}

// --------------------------------------------------------------------------------------------- chat

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace capi {
namespace {

/// One reply of auspex_chat().
class Chat {
  public:
    Chat(const Running& running, const Model& model, auspex_on_event on_event, void* user)
        : running_(running), model_(model), on_event_(on_event), user_(user) {}

    Answer open(const char* json, size_t n_json, const auspex_chat_options* given) {
        auspex_chat_options options;
        AUSPEX_C_TRY(read(given, &options, "auspex_chat_options"));
        AUSPEX_C_TRY(sampling(options.sampling, &options_.sampling));
        AUSPEX_C_TRY(read_stops(options.stops, options.n_stops, &options_.stops));
        if (options.max_tokens != 0) options_.max_tokens = options.max_tokens;
        AUSPEX_C_TRY(prompt_.make(model_, json, n_json));
        AUSPEX_C_TRY(check_range(options.free_thinking, 0, 1, "free_thinking"));
        options_.free_thinking = options.free_thinking != 0;
        if (options.max_thinking_tokens != 0) options_.max_thinking_tokens = options.max_thinking_tokens;
        options_.inside_thinking = prompt_.inside_thinking;
        options_.tools = prompt_.request.tools;
        return Answer();
    }

    Answer run() {
        AUSPEX_C_TRY(running_.session().sync(prompt_.ids, prompt_.marks).get(synced_));
        reply_ = ReplyGenerator(model_, running_.session(), std::move(options_));
        AUSPEX_C_TRY(need_memory(reply_));
        while (reply_.ended() == Finish::none) {
            if (running_.cancelled()) return Answer(AUSPEX_CANCELLED, "cancelled by auspex_session_cancel()");
            AUSPEX_C_TRY(say(reply_.next()));
        }
        AUSPEX_C_TRY(say(reply_.finish()));
        AUSPEX_C_TRY(reply_.resume().status());
        return close();
    }

  private:
    Answer say(Result<std::vector<ReplyEvent>> events) {
        AUSPEX_C_TRY(events.status());
        return say_events(events.value(), on_event_, user_);
    }

    Answer say(const auspex_event& event) {
        return on_event_(&event, user_) == 0 ? Answer() : Answer(AUSPEX_CANCELLED, "cancelled by on_event");
    }

    Answer close() {
        auspex_event usage = event_of(AUSPEX_EVENT_USAGE, std::string());
        usage.text = "";
        usage.n_prompt = prompt_.ids.size();
        usage.n_reused = synced_.rows_reused;
        usage.n_generated = reply_.tokens().size();
        AUSPEX_C_TRY(say(usage));
        std::string message;
        AUSPEX_C_TRY(to_json(reply_.reply()).get(message));
        auspex_event done = event_of(AUSPEX_EVENT_DONE, message);
        done.finish = finish();
        return say(done);
    }

    int32_t finish() const {
        if (reply_.ended() == Finish::length) return AUSPEX_FINISH_LENGTH;
        if (reply_.ended() == Finish::context) return AUSPEX_FINISH_CONTEXT;
        return reply_.reply().tool_calls.empty() ? AUSPEX_FINISH_STOP : AUSPEX_FINISH_CALLS;
    }

    const Running& running_;
    const Model& model_;
    const auspex_on_event on_event_;
    void* const user_;
    Prompt prompt_;
    ReplyOptions options_;
    ReplyGenerator reply_;
    SyncReport synced_;
};

}  // namespace
}  // namespace capi
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

auspex_code auspex_chat_options_init(auspex_chat_options* options, uint32_t struct_size) {
    return auspex::capi::init(options, struct_size);
}

auspex_code auspex_chat(auspex_session* session, const char* json, size_t n_json, const auspex_chat_options* options,
                        auspex_on_event on_event, void* user, auspex_error* error) {
    return call_session(session, error, [&](const Running& running) -> Answer {
        if (on_event == nullptr) return auspex::capi::bad("on_event is null; expected a function");
        auspex::capi::Chat chat(running, session->model, on_event, user);
        AUSPEX_C_TRY(chat.open(json, n_json, options));
        return chat.run();
    });
}

#pragma pop_macro("Status")
#pragma pop_macro("check")
#pragma pop_macro("emit")
#pragma pop_macro("max")
#pragma pop_macro("min")
#pragma pop_macro("slots")
#pragma pop_macro("small")
#pragma pop_macro("verify")

#endif /* AUSPEX_C_IMPLEMENTATION_INCLUDED */
