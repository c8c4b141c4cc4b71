// rotation.glsl: the angle of a pair at a position. Needs args (AttendArgs). f: turns per position times 2^64, low
// word first.

// cos and sin of position * frequency. The angle is reduced in integers, exact to 2^-32 of a turn for
// every position; the polynomials then work within an eighth of a turn.
vec2 rotation(uint position, uvec2 f) {
    uint low_high, low_low;
    umulExtended(position, f.x, low_high, low_low);
    const uint turn = position * f.y + low_high;  // fraction of a turn, times 2^32
    const uint quarter = (turn + 0x20000000u) >> 30;
    precise float x = float(int(turn - (quarter << 30))) * 1.4629180792671596e-9;  // 2 pi / 2^32
    precise float x2 = x * x;
    precise float s = fma(x2, 2.7557319e-6, -1.9841270e-4);
    s = fma(x2, s, 8.3333333e-3);
    s = fma(x2, s, -1.6666667e-1);
    s = fma(x * x2, s, x);
    precise float c = fma(x2, -2.7557319e-7, 2.4801587e-5);
    c = fma(x2, c, -1.3888889e-3);
    c = fma(x2, c, 4.1666667e-2);
    c = fma(x2, c, -0.5);
    c = fma(x2, c, 1.0);
    vec2 cs = (quarter & 1u) != 0u ? vec2(-s, c) : vec2(c, s);
    if ((quarter & 2u) != 0u) cs = -cs;
    precise vec2 r = cs * args.rope_scale;
    return r;
}
