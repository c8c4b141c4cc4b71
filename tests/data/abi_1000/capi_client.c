/* The C interface as a client in C99 uses it: load, stream, chat with events, cancel from another thread, read an error.
 *
 *     capi_client MODEL
 *
 * Exits with 0 if everything was as promised, else prints what was not.
 */
#define _POSIX_C_SOURCE 200809L
#include "auspex.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int n_failed = 0;
#define EXPECT(x)                                                \
    do {                                                         \
        if (!(x)) {                                              \
            ++n_failed;                                          \
            printf("%s:%d: expected %s\n", __FILE__, __LINE__, #x); \
        }                                                        \
    } while (0)

static auspex_error error = AUSPEX_ERROR_INIT;

static const char kChat[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Write a Python function that returns the double of a "
    "number.\"}]}";

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ------------------------------------------------------------------------------ errors and options */

static void read_errors(const auspex_device* device) {
    auspex_model* model = NULL;
    auspex_error brief;
    EXPECT(auspex_model_load(device, "no-such-file.gguf", NULL, &model, &error) == AUSPEX_NOT_FOUND);
    EXPECT(error.code == AUSPEX_NOT_FOUND && strstr(error.text, "no-such-file.gguf") != NULL);
    EXPECT(model == NULL);
    brief.struct_size = 16; /* room for 7 bytes and a NUL */
    memset(brief.text, 'x', sizeof brief.text);
    EXPECT(auspex_model_load(device, "no-such-file.gguf", NULL, &model, &brief) == AUSPEX_NOT_FOUND);
    EXPECT(strlen(brief.text) == 7 && brief.text[8] == 'x');
    EXPECT(auspex_model_load(device, "no-such-file.gguf", NULL, &model, NULL) == AUSPEX_NOT_FOUND);
    EXPECT(strcmp(auspex_code_name(AUSPEX_NOT_FOUND), "not_found") == 0);
    EXPECT(strcmp(auspex_code_name(-5), "unknown") == 0);
    EXPECT(auspex_abi_version() / 1000 == AUSPEX_ABI_VERSION / 1000);
    EXPECT(strlen(auspex_version_string()) >= 5);
}

static void describe(const auspex_device* device, const auspex_model* model) {
    char name[200];
    size_t length = 0;
    auspex_model_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = (uint32_t)sizeof info;
    EXPECT(auspex_device_name(device, NULL, 0, &length, &error) == AUSPEX_BUFFER_TOO_SMALL && length > 3);
    EXPECT(auspex_device_name(device, name, length, &length, &error) == AUSPEX_BUFFER_TOO_SMALL);
    EXPECT(auspex_device_name(device, name, length + 1, &length, &error) == AUSPEX_OK && strlen(name) == length);
    EXPECT(error.code == AUSPEX_OK && error.text[0] == '\0');
    EXPECT(auspex_model_get_info(model, &info, &error) == AUSPEX_OK);
    EXPECT(info.n_layer == 8 && info.n_vocab == 8192 && strcmp(info.architecture, "qwen35") == 0);
}

/* ----------------------------------------------------------------------------------- a loop of tokens */

static auspex_session* open_session(const auspex_model* model, uint32_t n_context) {
    auspex_session_options options;
    auspex_session* session = NULL;
    EXPECT(auspex_session_options_init(&options, (uint32_t)sizeof options) == AUSPEX_OK);
    options.n_context = n_context;
    options.n_ubatch = 64;
    EXPECT(auspex_session_create(model, &options, &session, &error) == AUSPEX_OK);
    return session;
}

static void stream_tokens(const auspex_model* model, const int32_t* prompt, size_t n_prompt) {
    int32_t ids[AUSPEX_MAX_TOKENS];
    size_t n = 0, n_shown = 0, n_text = 0;
    const char* text = "";
    int n_token = 0;
    auspex_stream* stream = NULL;
    auspex_session* session = open_session(model, 512);
    auspex_sync_report report;
    auspex_stats stats;
    report.struct_size = (uint32_t)sizeof report;
    stats.struct_size = (uint32_t)sizeof stats;
    EXPECT(auspex_session_sync(session, prompt, n_prompt, NULL, 0, &report, &error) == AUSPEX_OK);
    EXPECT(report.rows_computed == n_prompt && report.reason == AUSPEX_SYNC_NEW_TEXT && report.text[0] != '\0');
    EXPECT(auspex_stream_create(model, NULL, 0, 0, &stream, &error) == AUSPEX_OK);
    EXPECT(auspex_session_next(session, NULL, ids, 8, &n, &error) == AUSPEX_BUFFER_TOO_SMALL && n == 9);
    while (n_token < 32) {
        size_t i;
        if (auspex_session_next(session, NULL, ids, AUSPEX_MAX_TOKENS, &n, &error) != AUSPEX_OK) break;
        for (i = 0; i < n; ++i, ++n_token) {
            EXPECT(auspex_stream_push(stream, ids[i], &text, &n_text, &error) == AUSPEX_OK);
            EXPECT(strlen(text) == n_text);
            n_shown += n_text;
        }
    }
    EXPECT(error.code == AUSPEX_OK);
    EXPECT(auspex_stream_finish(stream, &text, &n_text, &error) == AUSPEX_OK);
    EXPECT(n_token == 32 && n_shown + n_text > 32 && auspex_stream_stopped(stream) == 0);
    EXPECT(auspex_session_get_stats(session, &stats, &error) == AUSPEX_OK && stats.tokens_sampled == 32);
    EXPECT(auspex_session_history(session, NULL, 0, &n, &error) == AUSPEX_BUFFER_TOO_SMALL && n == n_prompt + 32);
    auspex_stream_free(stream);
    auspex_session_free(session);
}

/* ----------------------------------------------------------------------------------------------- chat */

struct told {
    char text[4096], message[8192];
    size_t n_text;
    int n_event, stop_after, last, finish;
    uint64_t n_prompt, n_generated, n_reused;
    auspex_session* cancels; /* from inside the callback, as another thread would */
};

static int32_t on_event(const auspex_event* e, void* user) {
    struct told* told = (struct told*)user;
    ++told->n_event;
    told->last = e->type;
    EXPECT(e->struct_size >= sizeof(auspex_event) && strlen(e->text) == e->n_text);
    if (e->type == AUSPEX_EVENT_TEXT && told->n_text + e->n_text < sizeof told->text) {
        memcpy(told->text + told->n_text, e->text, e->n_text + 1);
        told->n_text += e->n_text;
    }
    if (e->type == AUSPEX_EVENT_USAGE) {
        told->n_prompt = e->n_prompt;
        told->n_generated = e->n_generated;
        told->n_reused = e->n_reused;
    }
    if (e->type == AUSPEX_EVENT_DONE) {
        told->finish = e->finish;
        if (e->n_text < sizeof told->message) memcpy(told->message, e->text, e->n_text + 1);
    }
    if (told->cancels != NULL && told->n_event == 3) auspex_session_cancel(told->cancels);
    return told->n_event == told->stop_after;
}

static void chat(const auspex_model* model) {
    static struct told told, again;
    static char request[16384];
    auspex_chat_options options;
    auspex_session* session = open_session(model, 1024);
    EXPECT(auspex_chat(session, kChat, strlen(kChat), NULL, on_event, &told, &error) == AUSPEX_OK);
    EXPECT(strstr(told.text, "return") != NULL);
    EXPECT(told.last == AUSPEX_EVENT_DONE && told.finish == AUSPEX_FINISH_STOP);
    EXPECT(told.n_prompt > 10 && told.n_generated > 10 && told.n_reused == 0);
    EXPECT(strncmp(told.message, "{\"role\": \"assistant\", \"content\": \"", 33) == 0);

    /* The next turn: what was said comes back as it was given. */
    snprintf(request, sizeof request, "%.*s, %s, {\"role\": \"user\", \"content\": \"And the square.\"}]}",
             (int)(strlen(kChat) - 2), kChat, told.message);
    EXPECT(auspex_chat_options_init(&options, (uint32_t)sizeof options) == AUSPEX_OK);
    options.max_tokens = 5;
    EXPECT(auspex_chat(session, request, strlen(request), &options, on_event, &again, &error) == AUSPEX_OK);
    EXPECT(again.n_generated == 5 && again.finish == AUSPEX_FINISH_LENGTH && again.n_reused > 10);

    /* Cancelled by the callback, from outside, and with a request that is none. */
    memset(&again, 0, sizeof again);
    again.stop_after = 2;
    EXPECT(auspex_chat(session, kChat, strlen(kChat), NULL, on_event, &again, &error) == AUSPEX_CANCELLED);
    EXPECT(again.n_event == 2);
    memset(&again, 0, sizeof again);
    again.cancels = session;
    EXPECT(auspex_chat(session, kChat, strlen(kChat), NULL, on_event, &again, &error) == AUSPEX_CANCELLED);
    EXPECT(again.n_event >= 3 && again.n_event < 6 && again.last == AUSPEX_EVENT_TEXT);
    EXPECT(auspex_chat(session, "{", 1, NULL, on_event, &again, &error) == AUSPEX_BAD_ARGUMENT);
    EXPECT(strstr(error.text, "JSON") != NULL);

    memset(&again, 0, sizeof again);
    EXPECT(auspex_chat(session, kChat, strlen(kChat), NULL, on_event, &again, &error) == AUSPEX_OK);
    EXPECT(strcmp(again.text, told.text) == 0 && strcmp(again.message, told.message) == 0);
    auspex_session_free(session);
}

/* --------------------------------------------------------------------------------------------- cancel */

struct other {
    auspex_session* session;
    unsigned delay_us;
};

static void* cancel_later(void* user) {
    const struct other* other = (const struct other*)user;
    struct timespec wait;
    wait.tv_sec = 0;
    wait.tv_nsec = (long)other->delay_us * 1000;
    nanosleep(&wait, NULL);
    auspex_session_cancel(other->session);
    return NULL;
}

static void cancel(const auspex_model* model, const int32_t* prompt, size_t n_prompt) {
    static int32_t ids[3000];
    size_t n = sizeof ids / sizeof *ids, i;
    struct other other;
    pthread_t thread;
    double begin, step, waited;
    auspex_sync_report report;
    int32_t next[AUSPEX_MAX_TOKENS];
    for (i = 0; i < n; ++i) ids[i] = prompt[i % n_prompt];
    other.session = open_session(model, 4096);
    report.struct_size = (uint32_t)sizeof report;
    begin = seconds();
    EXPECT(auspex_session_sync(other.session, ids, 64, NULL, 0, NULL, &error) == AUSPEX_OK);
    step = seconds() - begin;

    auspex_session_cancel(other.session); /* nothing runs: no effect */
    EXPECT(auspex_session_sync(other.session, ids, 128, NULL, 0, NULL, &error) == AUSPEX_OK);

    other.delay_us = 20000;
    EXPECT(pthread_create(&thread, NULL, cancel_later, &other) == 0);
    begin = seconds();
    EXPECT(auspex_session_sync(other.session, ids, n, NULL, 0, &report, &error) == AUSPEX_CANCELLED);
    waited = seconds() - begin - 1e-6 * other.delay_us;
    pthread_join(thread, NULL);
    EXPECT(waited < 10 * step + 0.2); /* a step, on a machine that does other work too */
    EXPECT(auspex_session_history(other.session, NULL, 0, &i, &error) == AUSPEX_BUFFER_TOO_SMALL);
    EXPECT(i >= 128 && i < n);
    EXPECT(auspex_session_sync(other.session, ids, 300, NULL, 0, &report, &error) == AUSPEX_OK);
    EXPECT(auspex_session_next(other.session, NULL, next, AUSPEX_MAX_TOKENS, &n, &error) == AUSPEX_OK && n == 1);
    auspex_session_free(other.session);
}

int main(int argc, char** argv) {
    auspex_device* device = NULL;
    auspex_model* model = NULL;
    auspex_device_options options;
    int32_t prompt[64];
    size_t n_prompt = 0;
    static const char text[] = "2026-03-14 08:00 Pump-3 status=nominal";
    if (argc != 2) return printf("expected one argument, a model\n"), 2;
    EXPECT(auspex_device_options_init(&options, (uint32_t)sizeof options) == AUSPEX_OK);
    options.kind = AUSPEX_KIND_CPU;
    options.n_thread = 2;
    EXPECT(auspex_device_open(&options, &device, &error) == AUSPEX_OK);
    EXPECT(auspex_device_kind(device) == AUSPEX_KIND_CPU);
    read_errors(device);
    EXPECT(auspex_model_load(device, argv[1], NULL, &model, &error) == AUSPEX_OK);
    if (model == NULL) return printf("%s: %s\n", argv[1], error.text), 1;
    describe(device, model);
    EXPECT(auspex_encode(model, text, strlen(text), 0, prompt, 64, &n_prompt, &error) == AUSPEX_OK && n_prompt > 5);
    stream_tokens(model, prompt, n_prompt);
    chat(model);
    cancel(model, prompt, n_prompt);
    auspex_device_free(device);
    auspex_model_free(model);
    printf("%d failed\n", n_failed);
    return n_failed != 0;
}
