/*
 * hither: replicated arrays for C++, over hither.h. Header only; C++17, std::span with C++20.
 *
 *   hither::replicated<float> table(1 << 24);
 *   table.write(0, values.data(), values.size());
 *   table.refresh();
 *   // in each thread:
 *   auto reader = table.open();
 *   {
 *     auto view = reader.read();   // one epoch until it goes out of scope
 *     sum += view[i];              // one load more than a plain array
 *   }
 *
 * What fails throws hither::error, with a code of hither.h and a sentence. See hither_replicated_create(3).
 */
#ifndef HITHER_HPP
#define HITHER_HPP

#include <hither.h>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#if __cplusplus >= 202002L
#include <span>
#endif

namespace hither {

/* What a call said. */
class error : public std::runtime_error {
 public:
  explicit error(int code) : std::runtime_error(hither_last_error()), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/* The result of a call, or its error. */
inline int checked(int result) {
  if (result < 0) {
    throw error(result);
  }
  return result;
}

/* One epoch, held by a reader until this goes. */
template <class T>
class view {
 public:
  explicit view(int reader) : reader_(reader) { checked(hither_replicated_read(reader, &view_)); }
  view(view &&other) noexcept : reader_(std::exchange(other.reader_, -1)), view_(other.view_) {}
  view(const view &) = delete;
  view &operator=(const view &) = delete;
  view &operator=(view &&) = delete;
  ~view() {
    if (reader_ >= 0) {
      hither_replicated_done(reader_);
    }
  }

  std::size_t size() const noexcept { return view_.bytes / sizeof(T); }
  std::uint64_t epoch() const noexcept { return view_.epoch; }
  bool is_local() const noexcept { return view_.is_local != 0; }
  /* All values in one piece: the local copy where it is complete, else the master. */
  const T *data() const noexcept { return static_cast<const T *>(view_.data); }
  /* One value, of the local copy where its chunk has one. The index is not checked. */
  const T &operator[](std::size_t index) const noexcept {
    const std::size_t byte = index * sizeof(T);
    const std::size_t within = byte & ((std::size_t{1} << view_.chunk_shift) - 1);
    const void *chunk = __atomic_load_n(view_.chunks + (byte >> view_.chunk_shift), __ATOMIC_ACQUIRE);
    return *reinterpret_cast<const T *>(static_cast<const char *>(chunk) + within);
  }
  const T *begin() const noexcept { return data(); }
  const T *end() const noexcept { return data() + size(); }
#if __cplusplus >= 202002L
  std::span<const T> span() const noexcept { return {data(), size()}; }
#endif

 private:
  int reader_;
  hither_view view_;
};

/* Reads at one place: one for each thread. */
template <class T>
class reader {
 public:
  explicit reader(int number) : number_(number) {}
  reader(reader &&other) noexcept : number_(std::exchange(other.number_, -1)) {}
  reader(const reader &) = delete;
  reader &operator=(const reader &) = delete;
  reader &operator=(reader &&) = delete;
  ~reader() {
    if (number_ >= 0) {
      hither_replicated_close_reader(number_);
    }
  }

  /* Holds the current epoch; one view at a time. */
  view<T> read() { return view<T>(number_); }

 private:
  int number_;
};

/* One logical array of T, with a copy on each node. */
template <class T>
class replicated {
  static_assert(std::is_trivially_copyable<T>::value, "values are copied as bytes");
  static_assert((sizeof(T) & (sizeof(T) - 1)) == 0 && sizeof(T) <= 65536,
                "take a type whose size is a power of two up to 64 KiB: a value lies within a chunk");

 public:
  explicit replicated(std::size_t size, hither_replicated_config config = {}) : size_(size) {
    if (size > SIZE_MAX / sizeof(T)) {
      throw std::length_error("more values than an address space has");
    }
    number_ = checked(hither_replicated_create(size * sizeof(T), &config, sizeof config));
  }
  replicated(replicated &&other) noexcept
      : number_(std::exchange(other.number_, 0)), size_(other.size_) {}
  replicated(const replicated &) = delete;
  replicated &operator=(const replicated &) = delete;
  replicated &operator=(replicated &&) = delete;
  /* Readers end before. */
  ~replicated() {
    if (number_ > 0) {
      hither_replicated_destroy(number_);
    }
  }

  std::size_t size() const noexcept { return size_; }
  /* For the calls of hither.h. */
  int number() const noexcept { return number_; }

  /* A reader of the place nearest to the calling thread, or of a place. */
  hither::reader<T> open(int place = -1) {
    return hither::reader<T>(checked(hither_replicated_reader(number_, place)));
  }
  /* Writes values and publishes them as one epoch. */
  void write(std::size_t index, const T *values, std::size_t count, int timeout_ms = -1) {
    inside(index, count);
    checked(hither_replicated_write(number_, index * sizeof(T), values, count * sizeof(T), timeout_ms));
  }
  /* Values of the next epoch, to change; then publish() or abandon(). */
  T *prepare(std::size_t index, std::size_t count, int timeout_ms = -1) {
    inside(index, count);
    void *memory = nullptr;
    checked(hither_replicated_prepare(number_, index * sizeof(T), count * sizeof(T), timeout_ms, &memory));
    return static_cast<T *>(memory);
  }
  void publish() { checked(hither_replicated_publish(number_)); }
  void abandon() { checked(hither_replicated_abandon(number_)); }
  void refresh(int timeout_ms = -1) { checked(hither_replicated_refresh(number_, timeout_ms)); }
  void collapse(int timeout_ms = -1) { checked(hither_replicated_collapse(number_, timeout_ms)); }
  std::string report() const {
    std::string text(static_cast<std::size_t>(checked(hither_replicated_report(number_, nullptr, 0))) + 256, '\0');
    const int length = checked(hither_replicated_report(number_, &text[0], text.size()));
    text.resize(static_cast<std::size_t>(length) < text.size() ? static_cast<std::size_t>(length) : text.size() - 1);
    return text;
  }

 private:
  void inside(std::size_t index, std::size_t count) const {
    if (index > size_ || count > size_ - index) {
      throw std::out_of_range("values behind the end of a replicated array");
    }
  }

  int number_ = 0;
  std::size_t size_;
};

}  // namespace hither

#endif /* HITHER_HPP */
