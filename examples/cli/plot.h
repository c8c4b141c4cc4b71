// cli/plot: lines over a logarithmic axis, as a PNG.
#pragma once
#include "common.h"

namespace cli {

struct PlotLine {
    std::string name;
    std::vector<double> x, y;  ///< x above 0, ascending; a y that is no number is left out
};
struct Plot {
    std::string title, x_label, y_label;
    std::vector<PlotLine> lines;
};
/// Draws the plots side by side. errors: io_error; bad_argument: nothing to draw.
Status write_plots(const std::string& path, const std::vector<Plot>& plots);

}  // namespace cli
