// sim_export.h: how the host finds and calls the kernels of a library.
#pragma once
#include "sim_device.h"

#include <stdio.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

template <class T> constexpr char sim_type_code() {
  using V = typename std::remove_cv<T>::type;
  if (std::is_pointer<V>::value) return 'p';
  if (std::is_floating_point<V>::value) return 'f';
  if (std::is_same<V, bool>::value) return '?';
  if (std::is_integral<V>::value) return std::is_signed<V>::value ? 'i' : 'u';
  return 's';
}

// "p8 f4 i4 ": kind and size of each parameter.
template <class... P> SIM_UNCHECKED const char* sim_signature(void (*)(P...)) {
  static char text[4096];
  char* end = text;
  *end = 0;
  (void)std::initializer_list<int>{
      (end += snprintf(end, 16, "%c%zu ", sim_type_code<P>(), sizeof(P)), 0)...};
  return text;
}

template <class... P, size_t... I>
SIM_UNCHECKED void sim_apply(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
  kernel(*static_cast<typename std::remove_cv<P>::type*>(values[I])...);
}
template <class... P> SIM_UNCHECKED void sim_call(void (*kernel)(P...), void** values) {
  sim_apply(kernel, values, std::index_sequence_for<P...>());
}

#define SIM_VISIBLE extern "C" __attribute__((visibility("default"))) SIM_UNCHECKED
#define SIM_EXPORT(NAME, FUNCTION)                                                \
  SIM_VISIBLE void sim_call_##NAME(void** values) { sim_call(FUNCTION, values); } \
  SIM_VISIBLE const char* sim_signature_##NAME() { return sim_signature(FUNCTION); }

// The thread-local block that stands for shared memory is found by this byte in it.
extern "C" {
thread_local char sim_anchor;
}
SIM_VISIBLE void* sim_anchor_address() {
  sim_anchor = 1;
  return &sim_anchor;
}
