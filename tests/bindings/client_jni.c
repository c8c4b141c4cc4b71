/* The native half of Client.java. */
#include <jni.h>
#include <stdlib.h>

#include "auspex.h"

typedef struct Client {
    auspex_device* device;
    auspex_model* model;
    auspex_session* session;
    auspex_error error;
    JNIEnv* env; /* of the call that runs */
    jobject on_text;
} Client;

static void throw_error(JNIEnv* env, const auspex_error* error) {
    (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/RuntimeException"), error->text);
}

/* 1 cancels: the receiver said so, or threw. */
static int32_t pass(Client* c, const char* text, size_t n) {
    JNIEnv* env = c->env;
    jclass type = (*env)->GetObjectClass(env, c->on_text);
    jbyteArray bytes = (*env)->NewByteArray(env, (jsize)n);
    jboolean stop = JNI_TRUE;
    if (bytes != NULL) {
        (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)n, (const jbyte*)text);
        stop = (*env)->CallBooleanMethod(env, c->on_text, (*env)->GetMethodID(env, type, "text", "([B)Z"), bytes);
        (*env)->DeleteLocalRef(env, bytes);
    }
    (*env)->DeleteLocalRef(env, type);
    return stop || (*env)->ExceptionCheck(env);
}

static int32_t on_event(const auspex_event* event, void* user) {
    return event->type == AUSPEX_EVENT_TEXT ? pass(user, event->text, event->n_text) : 0;
}

JNIEXPORT void JNICALL Java_Client_free(JNIEnv* env, jclass type, jlong handle) {
    Client* c = (Client*)(intptr_t)handle;
    (void)env, (void)type;
    if (c == NULL) return;
    auspex_session_free(c->session);
    auspex_model_free(c->model);
    auspex_device_free(c->device);
    free(c);
}

JNIEXPORT jlong JNICALL Java_Client_open(JNIEnv* env, jclass type, jbyteArray path) {
    char name[4096] = {0};
    Client* c = calloc(1, sizeof *c);
    if (c == NULL || (*env)->GetArrayLength(env, path) >= (jsize)sizeof name) abort();
    (*env)->GetByteArrayRegion(env, path, 0, (*env)->GetArrayLength(env, path), (jbyte*)name);
    c->error.struct_size = sizeof c->error;
    if (auspex_device_open(NULL, &c->device, &c->error) == AUSPEX_OK &&
        auspex_model_load(c->device, name, NULL, &c->model, &c->error) == AUSPEX_OK &&
        auspex_session_create(c->model, NULL, &c->session, &c->error) == AUSPEX_OK)
        return (jlong)(intptr_t)c;
    throw_error(env, &c->error);
    Java_Client_free(env, type, (jlong)(intptr_t)c);
    return 0;
}

static auspex_code give_tokens(Client* c, const char* prompt, size_t n_prompt, int n_want) {
    int32_t ids[1000];
    char text[1000];
    size_t n = 0, length = 0;
    auspex_code code = auspex_encode(c->model, prompt, n_prompt, 0, ids, 1000, &n, &c->error);
    if (code == AUSPEX_OK) code = auspex_session_sync(c->session, ids, n, NULL, 0, NULL, &c->error);
    for (int i = 0; i < n_want && code == AUSPEX_OK; ++i) {
        code = auspex_session_next(c->session, NULL, ids, AUSPEX_MAX_TOKENS, &n, &c->error);
        if (code == AUSPEX_OK) code = auspex_decode(c->model, ids, n, 0, text, sizeof text, &length, &c->error);
        if (code == AUSPEX_OK && pass(c, text, length)) break;
    }
    return code;
}

static void call(JNIEnv* env, jlong handle, jbyteArray text, int n_want, jobject on_text) {
    Client* c = (Client*)(intptr_t)handle;
    jbyte* bytes = (*env)->GetByteArrayElements(env, text, NULL);
    const size_t n = (size_t)(*env)->GetArrayLength(env, text);
    c->env = env;
    c->on_text = on_text;
    const auspex_code code = n_want != 0 ? give_tokens(c, (const char*)bytes, n, n_want)
                                         : auspex_chat(c->session, (const char*)bytes, n, NULL, on_event, c, &c->error);
    (*env)->ReleaseByteArrayElements(env, text, bytes, JNI_ABORT);
    if (code != AUSPEX_OK && !(*env)->ExceptionCheck(env)) throw_error(env, &c->error);
}

JNIEXPORT void JNICALL Java_Client_tokens(JNIEnv* env, jclass type, jlong handle, jbyteArray prompt, jint n,
                                          jobject on_text) {
    (void)type;
    call(env, handle, prompt, n, on_text);
}
JNIEXPORT void JNICALL Java_Client_chat(JNIEnv* env, jclass type, jlong handle, jbyteArray request, jobject on_text) {
    (void)type;
    call(env, handle, request, 0, on_text);
}
