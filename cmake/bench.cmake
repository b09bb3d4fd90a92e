# bench/NAME.c: one program each, run by bench/run.sh; not built by default where tests are off.
file(GLOB bench_src CONFIGURE_DEPENDS bench/*.c)
foreach(src ${bench_src})
  cmake_path(GET src STEM name)
  add_executable(bench_${name} ${src})
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(bench_${name} PRIVATE loraflow loraflow_flags m)
endforeach()
