// cli/plot: lines over a logarithmic or a linear axis, as a PNG.
#pragma once
#include "common.h"

namespace cli {

struct PlotLine {
    std::string name;
    std::vector<double> x, y;  ///< x ascending, above 0 on a logarithmic axis; a y that is no number is left out
    bool steps = false;        ///< holds its value to the next point, without dots
};
/// A vertical line with a name.
struct PlotMark {
    double x = 0;
    std::string name;
};
struct Plot {
    std::string title, x_label, y_label;
    std::vector<PlotLine> lines;
    bool linear = false;  ///< the x axis; else powers of two
    std::vector<PlotMark> marks = {};
    double y_max = 0;        ///< if above 0, the end of the y axis; else that is the highest point
    bool from_zero = false;  ///< start of the y axis at 0, else at the lowest point
    double y_step = 0;       ///< minimum distance of its labels
};
/// Draws the plots side by side, or each below the one before. errors: io_error; bad_argument: nothing to draw.
Status write_plots(const std::string& path, const std::vector<Plot>& plots, bool stacked = false);

}  // namespace cli
