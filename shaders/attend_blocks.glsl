// attend_blocks.glsl: blocks of KEYS keys and their values, fetched 16 bytes at a time and made halves, for the kernels
// of prompts on matrix units. Needs args (AttendArgs), D_HEAD, UNITS (D_HEAD / 8), KEYS, WRAPS, K_TYPE, V_TYPE,
// uvec4 k_wide[], and kv_formats.glsl.

// With first_row and last_row of a tile, oldest = oldest_key(first_row) and full_from = oldest_key(last_row): whether
// some row does not see all of a block; and the block to go on with, since those between the sinks and the oldest key
// that a row sees are left out.
#define MASKED(block) ((block) + KEYS > first_row + 1u || ((block) < full_from && (block) + KEYS > args.sinks) \
                       || (block) < step.first_key)
#define FROM(block) ((block) >= args.sinks && (block) + KEYS <= oldest ? oldest / KEYS * KEYS : (block))

// The place of a block in the caches: key i stands in slot0 + i, less the ring's length from `wrap` on.
struct Place {
    uint slot0, wrap;
};
Place place_of(uint block, uint head_row) {
    const uint ring_at = (block - min(block, args.sinks)) % args.ring;
    return Place(head_row + (block < args.sinks ? block : args.sinks + ring_at),
                 block < args.sinks ? KEYS : args.ring - ring_at);
}
// The place of block `after`, from that of the block before it: without a division where they are neighbours.
Place place_after(Place p, uint block, uint after, uint head_row) {
    if (block < args.sinks || after != block + KEYS) return place_of(after, head_row);
    const uint back = p.wrap > KEYS ? 0u : args.ring;
    return Place(p.slot0 + KEYS - back, p.wrap - KEYS + back);
}
uint row_of(Place p, uint key) { return p.slot0 + key - (WRAPS != 0u && key >= p.wrap ? args.ring : 0u); }

// Eight columns of a row as fetched: halves, or their codes in two words and the word of their scale.
uvec4 fetch_key(uint row, uint unit) {
    if (K_TYPE == kKvF16) return k_wide[row * UNITS + unit];
    const uint word = row * kv_code_words(K_TYPE) + k_code(2u * unit), scale = kv_scales(K_TYPE, row)
        + kv_scale_word(K_TYPE, unit / 4u);
    return uvec4(K_TYPE == kKvQ8 ? k_cache[word >> 1] : uvec2(K_WORD(word), 0u), K_WORD(scale), 0u);
}
uvec4 fetch_value(uint row, uint unit) {
    const uint word = row * kv_code_words(V_TYPE) + v_code(2u * unit), scale = kv_scales(V_TYPE, row)
        + kv_scale_word(V_TYPE, unit / 4u);
    return uvec4(V_TYPE == kKvQ8 ? v_cache[word >> 1] : uvec2(V_WORD(word), 0u), V_WORD(scale), 0u);
}
// The values of the two codes in the low bytes of `bytes`, rounded once. A byte b with 0x64 above it is the half
// 1024 + b, so codes become halves by a subtraction.
uint two_halves(uint type, uint bytes, f16vec2 unit) {
    const float16_t bias = type == kKvQ8 ? 1152.0hf : type == kKvQ40 ? 1032.0hf : 1024.0hf;
    precise f16vec2 code = unpackFloat2x16((bytes & 0xffu) | ((bytes << 8) & 0xff0000u) | 0x64006400u) - f16vec2(bias);
    precise f16vec2 value = type == kKvQ41 ? fma(code, unit.xx, unit.yy) : code * unit.xx;
    return packFloat2x16(value);
}
uvec4 halves_of(uint type, uvec4 raw, uint unit) {
    if (type == kKvF16) return raw;
    const f16vec2 h = unpackFloat2x16(raw.z), scale = type != kKvQ41 && (unit & 4u) != 0u ? h.yx : h;
    const uint word = type == kKvQ40 ? raw.x ^ 0x88888888u : raw.x;  // codes become at least 0
    const uvec2 codes = type == kKvQ8 ? raw.xy ^ 0x80808080u : uvec2(word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu);
    return uvec4(two_halves(type, codes.x, scale), two_halves(type, codes.x >> 16, scale),
        two_halves(type, codes.y, scale), two_halves(type, codes.y >> 16, scale));
}
