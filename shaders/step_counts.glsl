// step_counts.glsl: the indirect group counts of attend_step; needs step (writable) and args (StepArgs).
void count_chunks() {
    for (uint i = 0u; i < args.n_kind; i++) {
        uint n = 0u;
        if (step.n_row > 0u)
            n = chunks_count(chunks_seen(step.position, step.n_row, args.kind[i].window, args.kind[i].sinks, step.first_key));
        step.attend_groups[3u * i] = n;
        step.attend_groups[3u * i + 1u] = n > 0u ? args.kind[i].n_head_kv : 0u;
        const uint tile = args.kind[i].tile;
        step.attend_groups[3u * i + 2u] = n > 0u ? (tile > 0u ? (step.n_row * args.kind[i].per_kv + tile - 1u) / tile : 1u) : 0u;
    }
}
