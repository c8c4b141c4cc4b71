// hidden_rows.glsl: the hidden rows that feed an MTP pass: kept rows from hidden_from on, rows given by the host, or
// rows that keep_rows stored for these positions. Needs args (RowsArgs), step, and the buffers
//   kept     f32 [row, x_stride]
//   given    f32 [row, width]
//   pending  f32 [kPendingRows, width]

float hidden_value(uint row, uint i) {
    const uint from = step.hidden_from;
    if ((from & kHiddenGiven) != 0u) return given[row * args.width + i];
    if ((from & kHiddenPending) != 0u) return pending[(step.position + row) % kPendingRows * args.width + i];
    return kept[(from + row) * args.x_stride + i];
}
