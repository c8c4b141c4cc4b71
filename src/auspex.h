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
