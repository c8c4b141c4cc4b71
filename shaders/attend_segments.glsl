// attend_segments.glsl: segments of keys (args.h) and how their results are joined, shared by attend_tile,
// attend_shared, attend_rows and attend_join. Needs attend_visible.glsl.
//
// Partials  part f32 [segment, n_head_kv, Q, D_HEAD]: sums of weighted values under the maximum of the segment; stat
//           vec2 [segment, n_head_kv, Q]: that maximum, and the sum of the weights. Segments are numbered among those
//           that the pass sees. A segment in which a row sees no key has the maximum kMasked and changes no bit.
// Rounds    a round takes the next Q = round_queries() queries of each kv head, as many as there is room for. The host
//           dispatches as many rounds as the longest history needs; those behind the last query return at once.

bool segments_even() { return args.window > 0u && args.window <= kSegment * kSegmentOctave; }
uint segment_begin(uint s) {
    if (segments_even()) return s * kSegment;
    const uint o = s / kSegmentOctave;
    return (kSegment * kSegmentOctave) * ((1u << o) - 1u) + ((s % kSegmentOctave) * kSegment << o);
}
uint segment_of(uint p) {
    if (segments_even()) return p / kSegment;
    const uint o = uint(findMSB(p / (kSegment * kSegmentOctave) + 1u));
    return o * kSegmentOctave + (((p - (kSegment * kSegmentOctave) * ((1u << o) - 1u)) / kSegment) >> o);
}

// The segments that a pass sees: [0, n_sink) and [first, end).
Chunks segments_seen() {
    Chunks s;
    s.end = segment_of(step.position + step.n_row - 1u) + 1u;
    s.n_sink = args.window > 0u && args.sinks > 0u ? min(segment_of(args.sinks - 1u) + 1u, s.end) : 0u;
    s.first = max(segment_of(oldest_key(step.position)), s.n_sink);
    return s;
}

// Q; n_segment: how many partials a query has.
uint round_queries(uint n_segment) {
    return args.n_part / n_segment / kAttendRound * kAttendRound;
}

// The factor of what was summed under the maximum `top`, once the maximum is `highest`.
float join_weight(float top, float highest) {
    precise float e = exp(top - highest);
    return top > kMasked ? (top == highest ? 1.0 : e) : 0.0;
}

// Joins (maximum, sum) of the next segment to those so far. x: factor of the values so far, y: of the segment's.
vec2 join_stat(inout vec2 all, vec2 next) {
    const float highest = max(all.x, next.x);
    const vec2 by = vec2(join_weight(all.x, highest), join_weight(next.x, highest));
    precise float add = next.y * by.y;
    all = vec2(highest, fma(all.y, by.x, add));
    return by;
}
float join_value(float all, float next, vec2 by) {
    precise float add = next * by.y;
    return fma(all, by.x, add);
}
