#include "plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
#include <stb/stb_easy_font.h>
#include <stb/stb_image_write.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace cli {
namespace {

struct Colour {
    unsigned char r, g, b;
};
constexpr Colour kInk = {40, 40, 48}, kGrid = {225, 227, 232};
constexpr Colour kLines[] = {{31, 119, 180}, {214, 39, 40}, {44, 160, 44}, {255, 127, 14}, {148, 103, 189}, {140, 86, 75}, {23, 160, 180}, {127, 127, 127}};
constexpr int kWidth = 760, kHeight = 520, kLeft = 90, kRight = 24, kTop = 56, kBottom = 64, kText = 2;

class Canvas {
  public:
    Canvas(int w, int h) : w_(w), h_(h), pixels_(static_cast<size_t>(w) * static_cast<size_t>(h) * 3, 255) {}
    void dot(int x, int y, Colour c) {
        if (x < 0 || y < 0 || x >= w_ || y >= h_) return;
        unsigned char* p = &pixels_[(static_cast<size_t>(y) * static_cast<size_t>(w_) + static_cast<size_t>(x)) * 3];
        p[0] = c.r, p[1] = c.g, p[2] = c.b;
    }
    void box(int x0, int y0, int x1, int y1, Colour c) {
        for (int y = y0; y < y1; ++y)
            for (int x = x0; x < x1; ++x) dot(x, y, c);
    }
    void line(double x0, double y0, double x1, double y1, Colour c) {
        const int n = static_cast<int>(std::fmax(std::fabs(x1 - x0), std::fabs(y1 - y0))) + 1;
        for (int i = 0; i <= n; ++i) {
            const int x = static_cast<int>(std::lround(x0 + (x1 - x0) * i / n)), y = static_cast<int>(std::lround(y0 + (y1 - y0) * i / n));
            box(x - 1, y - 1, x + 1, y + 1, c);
        }
    }
    static int text_width(const std::string& s) { return kText * stb_easy_font_width(const_cast<char*>(s.c_str())); }
    void text(int x, int y, const std::string& s, Colour c) {
        std::vector<char> quads(s.size() * 300 + 1000);
        const int n = stb_easy_font_print(0, 0, const_cast<char*>(s.c_str()), nullptr, quads.data(), static_cast<int>(quads.size()));
        for (int i = 0; i < n; ++i) {  // four corners of 16 bytes: x, y, z, colour; the first and third are opposite
            float a[2], b[2];
            std::memcpy(a, &quads[static_cast<size_t>(i) * 64], sizeof a);
            std::memcpy(b, &quads[static_cast<size_t>(i) * 64 + 32], sizeof b);
            box(x + static_cast<int>(a[0]) * kText, y + static_cast<int>(a[1]) * kText, x + static_cast<int>(b[0]) * kText, y + static_cast<int>(b[1]) * kText, c);
        }
    }
    bool write(const std::string& path) const { return stbi_write_png(path.c_str(), w_, h_, 3, pixels_.data(), w_ * 3) != 0; }

  private:
    int w_, h_;
    std::vector<unsigned char> pixels_;
};

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", x);
    return text;
}

void draw(Canvas& canvas, int left, const Plot& plot) {
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (const PlotLine& l : plot.lines)
        for (size_t i = 0; i < l.x.size(); ++i) {
            if (!std::isfinite(l.y[i])) continue;
            x0 = std::fmin(x0, std::log2(l.x[i])), x1 = std::fmax(x1, std::log2(l.x[i]));
            y0 = std::fmin(y0, l.y[i]), y1 = std::fmax(y1, l.y[i]);
        }
    if (!(x0 <= x1)) return;
    x0 = std::floor(x0), x1 = std::fmax(std::ceil(x1), x0 + 1);
    const double step = std::pow(10, std::floor(std::log10(std::fmax(y1 - y0, 1e-6)))), unit = (y1 - y0) / step < 2 ? step / 5 : (y1 - y0) / step < 5 ? step / 2 : step;
    y0 = std::floor(y0 / unit) * unit;
    y1 = std::fmax(std::ceil(y1 / unit) * unit, y0 + unit);
    const double w = kWidth - kLeft - kRight, h = kHeight - kTop - kBottom;
    const auto px = [&](double x) { return left + kLeft + (x - x0) / (x1 - x0) * w; };
    const auto py = [&](double y) { return kTop + (y1 - y) / (y1 - y0) * h; };
    for (double x = x0; x <= x1; x += 1) {
        const int at = static_cast<int>(px(x));
        canvas.box(at, kTop, at + 1, kHeight - kBottom, kGrid);
        const std::string label = number(std::exp2(x));
        canvas.text(at - Canvas::text_width(label) / 2, kHeight - kBottom + 8, label, kInk);
    }
    for (double y = y0; y <= y1 + unit / 2; y += unit) {
        const int at = static_cast<int>(py(y));
        canvas.box(left + kLeft, at, left + kWidth - kRight, at + 1, kGrid);
        const std::string label = number(y);
        canvas.text(left + kLeft - 8 - Canvas::text_width(label), at - 7, label, kInk);
    }
    int row = kTop + 8;
    for (size_t i = 0; i < plot.lines.size(); ++i) {
        const PlotLine& l = plot.lines[i];
        const Colour c = kLines[i % (sizeof kLines / sizeof *kLines)];
        double last_x = NAN, last_y = NAN;
        for (size_t k = 0; k < l.x.size(); ++k) {
            if (!std::isfinite(l.y[k])) continue;
            const double x = px(std::log2(l.x[k])), y = py(l.y[k]);
            if (std::isfinite(last_x)) canvas.line(last_x, last_y, x, y, c);
            canvas.box(static_cast<int>(x) - 3, static_cast<int>(y) - 3, static_cast<int>(x) + 4, static_cast<int>(y) + 4, c);
            last_x = x, last_y = y;
        }
        if (plot.lines.size() < 2) continue;
        const int at = left + kWidth - kRight - 20 - Canvas::text_width(l.name);
        canvas.box(at - 24, row + 4, at - 6, row + 9, c);
        canvas.text(at, row, l.name, kInk);
        row += 22;
    }
    canvas.text(left + kLeft, 18, plot.title, kInk);
    canvas.text(left + kLeft, kTop - 18, plot.y_label, kInk);
    canvas.text(left + kWidth - kRight - Canvas::text_width(plot.x_label), kHeight - 26, plot.x_label, kInk);
}

}  // namespace

Status write_plots(const std::string& path, const std::vector<Plot>& plots) {
    if (plots.empty()) return Status(Code::bad_argument, "there is nothing to plot");
    Canvas canvas(kWidth * static_cast<int>(plots.size()), kHeight);
    for (size_t i = 0; i < plots.size(); ++i) draw(canvas, kWidth * static_cast<int>(i), plots[i]);
    return canvas.write(path) ? Status() : Status(Code::io_error, "'" + path + "' cannot be written");
}

}  // namespace cli
