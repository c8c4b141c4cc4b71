#include "plot.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "platform.h"

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
constexpr Colour kLines[] = {{31, 119, 180},  {214, 39, 40}, {44, 160, 44},  {255, 127, 14},
                             {148, 103, 189}, {140, 86, 75}, {23, 160, 180}, {127, 127, 127}};
constexpr Colour kMark = {170, 172, 180};
constexpr int kLeft = 90, kRight = 24, kTop = 56, kBottom = 64, kText = 2;

/// Position and size of one plot on the canvas.
struct Panel {
    int left = 0, top = 0, width = 760, height = 520;
};

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
            const int x = static_cast<int>(std::lround(x0 + (x1 - x0) * i / n)),
                      y = static_cast<int>(std::lround(y0 + (y1 - y0) * i / n));
            box(x - 1, y - 1, x + 1, y + 1, c);
        }
    }
    static int text_width(const std::string& s) { return kText * stb_easy_font_width(const_cast<char*>(s.c_str())); }
    void text(int x, int y, const std::string& s, Colour c) {
        std::vector<char> quads(s.size() * 300 + 1000);
        const int n = stb_easy_font_print(0, 0, const_cast<char*>(s.c_str()), nullptr, quads.data(),
                                          static_cast<int>(quads.size()));
        for (int i = 0; i < n; ++i) {  // four corners of 16 bytes: x, y, z, colour; the first and third are opposite
            float a[2], b[2];
            std::memcpy(a, &quads[static_cast<size_t>(i) * 64], sizeof a);
            std::memcpy(b, &quads[static_cast<size_t>(i) * 64 + 32], sizeof b);
            box(x + static_cast<int>(a[0]) * kText, y + static_cast<int>(a[1]) * kText,
                x + static_cast<int>(b[0]) * kText, y + static_cast<int>(b[1]) * kText, c);
        }
    }
    Status write(const std::string& path) const {
        std::FILE* const file = open_stream(path, "wb");
        const auto put = [](void* to, void* data, int n) {
            (void)!std::fwrite(data, 1, static_cast<size_t>(n), static_cast<std::FILE*>(to));
        };
        bool written = file && stbi_write_png_to_func(put, file, w_, h_, 3, pixels_.data(), w_ * 3) != 0 &&
                       std::fflush(file) == 0 && !std::ferror(file);
        const int why = errno;
        if (file) written = std::fclose(file) == 0 && written;
        return written ? Status() : Status(Code::io_error, "'" + path + "' cannot be written: " + std::strerror(why));
    }

  private:
    int w_, h_;
    std::vector<unsigned char> pixels_;
};

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof text, std::fabs(x) >= 1000 ? "%.0f" : "%.3g", x);
    return text;
}

/// A round step so that `range` has two to ten of them.
double round_step(double range) {
    const double step = std::pow(10, std::floor(std::log10(std::fmax(range, 1e-6))));
    return range / step < 2 ? step / 5 : range / step < 5 ? step / 2 : step;
}

/// The borders of the axes: x in its own unit, powers of two where it is logarithmic.
struct Axes {
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY, x_step = 1, y_step = 1;
    bool linear;
    double scaled(double x) const { return linear ? x : std::log2(x); }

    explicit Axes(const Plot& plot) : linear(plot.linear) {
        for (const PlotLine& l : plot.lines)
            for (size_t i = 0; i < l.x.size(); ++i) {
                x0 = std::fmin(x0, scaled(l.x[i])), x1 = std::fmax(x1, scaled(l.x[i]));
                if (!std::isfinite(l.y[i])) continue;
                y0 = std::fmin(y0, l.y[i]), y1 = std::fmax(y1, l.y[i]);
            }
        if (!(x0 <= x1 && y0 <= y1)) return;
        if (linear)
            x_step = round_step(x1 - x0);
        else
            x0 = std::floor(x0), x1 = std::fmax(std::ceil(x1), x0 + 1);
        if (plot.from_zero) y0 = 0;
        if (plot.y_max > 0) y1 = plot.y_max;
        y_step = std::fmax(round_step(y1 - y0), plot.y_step);
        y0 = std::floor(y0 / y_step) * y_step;
        y1 = std::fmax(std::ceil(y1 / y_step - 1e-9) * y_step, y0 + y_step);
        if (x1 <= x0) x1 = x0 + 1;
    }
};

void draw(Canvas& canvas, const Panel& f, const Plot& plot) {
    const Axes a(plot);
    if (!(a.x0 <= a.x1 && a.y0 <= a.y1)) return;
    const int left = f.left + kLeft, right = f.left + f.width - kRight, top = f.top + kTop,
              bottom = f.top + f.height - kBottom;
    const auto px = [&](double scaled) { return left + (scaled - a.x0) / (a.x1 - a.x0) * (right - left); };
    const auto py = [&](double y) { return top + (a.y1 - y) / (a.y1 - a.y0) * (bottom - top); };
    for (double x = std::ceil(a.x0 / a.x_step) * a.x_step; x <= a.x1 + a.x_step * 1e-6; x += a.x_step) {
        const int at = static_cast<int>(px(x));
        canvas.box(at, top, at + 1, bottom, kGrid);
        const std::string label = number(a.linear ? x : std::exp2(x));
        canvas.text(at - Canvas::text_width(label) / 2, bottom + 8, label, kInk);
    }
    for (double y = a.y0; y <= a.y1 + a.y_step / 2; y += a.y_step) {
        const int at = static_cast<int>(py(y));
        canvas.box(left, at, right, at + 1, kGrid);
        const std::string label = number(std::fabs(y) < a.y_step / 2 ? 0 : y);
        canvas.text(left - 8 - Canvas::text_width(label), at - 7, label, kInk);
    }
    for (const PlotMark& m : plot.marks) {
        const int at = static_cast<int>(px(a.scaled(m.x)));
        canvas.box(at, top, at + 2, bottom, kMark);
        canvas.text(at + 6, top + 4, m.name, kMark);
    }
    // The legend: in a column within the plot, or in one row above a plot whose upper edge has marks.
    const bool in_row = !plot.marks.empty();
    int legend = top + 8, legend_x = right;
    for (size_t i = 0; i < plot.lines.size(); ++i) {
        const PlotLine& l = plot.lines[i];
        const Colour c = kLines[i % (sizeof kLines / sizeof *kLines)];
        double last_x = NAN, last_y = NAN;
        for (size_t k = 0; k < l.x.size(); ++k) {
            if (!std::isfinite(l.y[k])) continue;
            const double x = px(a.scaled(l.x[k])), y = py(std::fmin(l.y[k], a.y1));
            if (std::isfinite(last_x) && l.steps) canvas.line(last_x, last_y, x, last_y, c), last_x = x;
            if (std::isfinite(last_x)) canvas.line(last_x, last_y, x, y, c);
            if (!l.steps)
                canvas.box(static_cast<int>(x) - 3, static_cast<int>(y) - 3, static_cast<int>(x) + 4,
                           static_cast<int>(y) + 4, c);
            last_x = x, last_y = y;
        }
        if (plot.lines.size() < 2) continue;
        const int width = Canvas::text_width(l.name), at = (in_row ? legend_x : right - 20) - width,
                  row = in_row ? top - 18 : legend;
        canvas.box(at - 24, row + 4, at - 6, row + 9, c);
        canvas.text(at, row, l.name, kInk);
        legend += 22, legend_x = at - 44;
    }
    canvas.text(left, f.top + 14, plot.title, kInk);
    canvas.text(left, top - 18, plot.y_label, kInk);
    canvas.text(right - Canvas::text_width(plot.x_label), bottom + 38, plot.x_label, kInk);
}

}  // namespace

Status write_plots(const std::string& path, const std::vector<Plot>& plots, bool stacked) {
    if (plots.empty()) return Status(Code::bad_argument, "there is nothing to plot");
    Panel panel;
    if (stacked) panel.width = 1320, panel.height = 380;
    const int n = static_cast<int>(plots.size());
    Canvas canvas(panel.width * (stacked ? 1 : n), panel.height * (stacked ? n : 1));
    for (const Plot& plot : plots) {
        draw(canvas, panel, plot);
        (stacked ? panel.top : panel.left) += stacked ? panel.height : panel.width;
    }
    return canvas.write(path);
}

}  // namespace cli
