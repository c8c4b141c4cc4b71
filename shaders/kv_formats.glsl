// kv_formats.glsl: layout of keys and values in their caches, for every kernel that reads one. kv_store.glsl writes
// them.
//
// A cache is [n_head_kv, capacity] rows of D_HEAD codes. A quantised one has as many rows of scales after all codes,
// each padded to words. Codes and scales are those of src/base/number_encode.cpp.
//   f16    D_HEAD halves
//   q8_0   D_HEAD signed bytes; a half for each block of 32:       value = scale * code
//   q4_0   D_HEAD nibbles in two's complement; likewise
//   q4_1   D_HEAD nibbles; two halves for each block:              value = scale * code + low
// A word of nibbles holds eight columns, 0 .. 3 in the low and 4 .. 7 in the high halves of its bytes: a quad, four
// neighbouring columns, is four bytes of a word in every format.
//
// The including kernel declares before this file: args (AttendArgs), D_HEAD, K_TYPE and V_TYPE (kKv...), and uvec2
// k_cache[], v_cache[]; or other ones and K_WORD(i), the l-value of word i of the keys.

#ifndef K_WORD
#define K_WORD(i) k_cache[(i) >> 1][(i) & 1u]
#define K_HALVES(row, quad) k_cache[(row) * (D_HEAD / 4u) + (quad)]
#endif
#define V_WORD(i) v_cache[(i) >> 1][(i) & 1u]
#define V_HALVES(row, quad) v_cache[(row) * (D_HEAD / 4u) + (quad)]

uint kv_code_words(uint type) { return type == kKvF16 ? D_HEAD / 2u : type == kKvQ8 ? D_HEAD / 4u : D_HEAD / 8u; }
uint kv_scale_words(uint type) { return type == kKvQ41 ? D_HEAD / 32u : (D_HEAD / 32u + 1u) / 2u; }
uint kv_scales(uint type, uint row) { return args.n_head_kv * args.capacity * kv_code_words(type)
    + row * kv_scale_words(type); }
uint kv_scale_word(uint type, uint block) { return type == kKvQ41 ? block : block / 2u; }

// The word of a quad's codes in its row. Bytes of keys of 256 stand in the order in which the lanes of
// attend_step read them, 16 bytes at a time: lane l has columns 32 l .. 32 l + 31 in pieces l and l + 8.
uint k_code(uint quad) {
    if (K_TYPE == kKvQ8) return D_HEAD == 256u ? (quad & 4u) * 8u + (quad >> 3) * 4u + (quad & 3u) : quad;
    return quad / 2u;
}
uint v_code(uint quad) { return V_TYPE == kKvQ8 ? quad : quad / 2u; }

vec4 kv_bytes(uint w) {
    const int i = int(w);
    return vec4(bitfieldExtract(i, 0, 8), bitfieldExtract(i, 8, 8), bitfieldExtract(i, 16, 8),
        bitfieldExtract(i, 24, 8));
}
// The codes of the low (high 0) or high quad of a word of nibbles. Those of q4_0 come times 16.
vec4 kv_nibbles(uint type, uint w, uint high) {
    return kv_bytes(type == kKvQ41 ? (w >> (4u * high)) & 0x0f0f0f0fu : (w << (4u - 4u * high)) & 0xf0f0f0f0u);
}
// What codes are multiplied by: (scale, what is added). q4_0 less the 16 above.
vec2 kv_unit(uint type, uint word, uint block) {
    const vec2 h = unpackHalf2x16(word);
    if (type == kKvQ41) return h;
    const float scale = (block & 1u) != 0u ? h.y : h.x;
    return vec2(type == kKvQ40 ? scale * 0.0625 : scale, 0.0);
}

// A quad: fetched as two words, of halves or of codes and scales, and its values, which every product
// here leaves exact but for the last addition of q4_1.
vec4 kv_values(uint type, uvec2 raw, uint quad) {
    if (type == kKvF16) return vec4(unpackHalf2x16(raw.x), unpackHalf2x16(raw.y));
    const vec2 unit = kv_unit(type, raw.y, quad / 8u);
    if (type == kKvQ8) return kv_bytes(raw.x) * unit.x;
    const vec4 codes = kv_nibbles(type, raw.x, quad & 1u);
    return type == kKvQ41 ? fma(codes, vec4(unit.x), vec4(unit.y)) : codes * unit.x;
}
#ifdef K_HALVES
uvec2 k_fetch(uint row, uint quad) {
    if (K_TYPE == kKvF16) return K_HALVES(row, quad);
    const uint code = row * kv_code_words(K_TYPE) + k_code(quad), scale = kv_scales(K_TYPE, row)
        + kv_scale_word(K_TYPE, quad / 8u);
    return uvec2(K_WORD(code), K_WORD(scale));
}
#endif
uvec2 v_fetch(uint row, uint quad) {
    if (V_TYPE == kKvF16) return V_HALVES(row, quad);
    const uint code = row * kv_code_words(V_TYPE) + v_code(quad), scale = kv_scales(V_TYPE, row)
        + kv_scale_word(V_TYPE, quad / 8u);
    return uvec2(V_WORD(code), V_WORD(scale));
}
