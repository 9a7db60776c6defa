/* The wrapper for C++: what it does, and that what fails is thrown. */
#include <hither.hpp>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define HOLDS(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                   \
    }                                                                 \
  } while (0)

template <class Call>
static int thrown(Call call) {
  try {
    call();
  } catch (const hither::error &error) {
    HOLDS(error.what()[0] != '\0');
    return error.code();
  } catch (const std::exception &) {
    return 1;
  }
  return 0;
}

int main() {
  hither_replicated_config config = {};
  config.copies = 4;
  config.chunk_bytes = 1 << 16;
  hither::replicated<float> table(100000, config);
  std::vector<float> values(table.size());
  for (std::size_t index = 0; index < values.size(); index++) {
    values[index] = static_cast<float>(index);
  }
  table.write(0, values.data(), values.size());
  table.refresh();
  std::vector<std::thread> threads;
  for (int place = 0; place < 4; place++) {
    threads.emplace_back([&table, place] {
      auto reader = table.open(place);
      auto view = reader.read();
      HOLDS(view.is_local() && view.epoch() == 2 && view.size() == 100000);
      for (std::size_t index = 0; index < view.size(); index++) {
        HOLDS(view[index] == static_cast<float>(index) && view.data()[index] == view[index]);
      }
      HOLDS(view.end() - view.begin() == 100000);
#if __cplusplus >= 202002L
      HOLDS(view.span().size() == 100000);
#endif
    });
  }
  for (auto &thread : threads) {
    thread.join();
  }
  auto reader = table.open();
  {
    auto view = reader.read();
    table.prepare(5, 1)[0] = -1;
    table.publish();
    HOLDS(view[5] == 5 && view.epoch() == 2);
    HOLDS(thrown([&] { table.prepare(0, 1, 10); }) == HITHER_ETIMEDOUT);
  }
  HOLDS(reader.read()[5] == -1);
  HOLDS(thrown([&] { table.prepare(99999, 2); }) == 1);
  HOLDS(thrown([&] { table.publish(); }) == HITHER_EINVAL);
  HOLDS(thrown([] { hither::replicated<int> none(0); }) == HITHER_EINVAL);
  HOLDS(thrown([&] { table.open(4); }) == HITHER_EINVAL);
  HOLDS(table.report().find("of 21 copies of chunks") != std::string::npos);
  table.collapse();
  HOLDS(table.report().find("0 of 21 copies of chunks") != std::string::npos);
  std::puts("good");
}
