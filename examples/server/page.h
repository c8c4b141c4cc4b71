// server/page: the page at "/", which the build embeds from page.html.
#pragma once
#include <string>

namespace server {

std::string page_text();

}  // namespace server
