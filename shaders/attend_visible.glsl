// attend_visible.glsl: where keys are and which of them a row sees. Needs args (AttendArgs) and step (StepState).

// A kernel with a pipeline of its own for caches without a window, where every row is in place, defines WINDOWED: 0 in
// that pipeline.
#ifdef WINDOWED
#define WINDOW (WINDOWED != 0u ? args.window : 0u)
#define SINKS (WINDOWED != 0u ? args.sinks : 0u)
#else
#define WINDOWED 1u
#define WINDOW args.window
#define SINKS args.sinks
#endif

// The slot of KV row p in its head's part of a cache: sinks first, then a ring.
uint slot_of(uint p) {
    if (WINDOWED == 0u) return p;
    return p < args.sinks ? p : args.sinks + (p - args.sinks) % args.ring;
}

// The first key that row p sees through its window; sinks before it are seen as well.
uint oldest_key(uint p) {
    return max(WINDOW > 0u && p + 1u > WINDOW ? p + 1u - WINDOW : 0u, step.first_key);
}

bool visible(uint key, uint row) {
    return key <= row && key >= step.first_key && (WINDOW == 0u || row - key < WINDOW || key < SINKS);
}
