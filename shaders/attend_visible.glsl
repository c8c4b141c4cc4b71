// attend_visible.glsl: where keys are and which of them a row sees. Needs args (AttendArgs) and step (StepState).

// The slot of KV row p in its head's part of a cache: sinks first, then a ring.
uint slot_of(uint p) {
    return p < args.sinks ? p : args.sinks + (p - args.sinks) % args.ring;
}

// The first key that row p sees through its window; sinks before it are seen as well.
uint oldest_key(uint p) {
    return max(args.window > 0u && p + 1u > args.window ? p + 1u - args.window : 0u, step.first_key);
}

bool visible(uint key, uint row) {
    return key <= row && key >= step.first_key && (args.window == 0u || row - key < args.window || key < args.sinks);
}
