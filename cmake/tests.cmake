# tests/unit/NAME.c     one binary and one test each
# tests/kernels/NAME.c  kernel checks
# tests/stages/NAME.c   tests of stages; they link tests/stages/harness.h
# tests/sh/NAME.sh      whole-program tests; exit 77 is a skip with its reason on stdout
# A comment line " * @label A B" (C) or "# @label A B" (shell) adds labels,
# "@timeout N" sets the seconds; "@link X" links a pkg-config package.
# tests/fuzz/NAME.c     a fuzz target; its test replays tests/fuzz/corpus/NAME with small mutations
# Label "short" marks what the sanitizer builds run; "slow" runs only with ./dev test --all.
set(test_env
  "LORAFLOW=$<IF:$<TARGET_EXISTS:loraflow-cli>,${CMAKE_BINARY_DIR}/loraflow,>"
  "LORAFLOW_SOURCE=${CMAKE_SOURCE_DIR}" "LORAFLOW_BUILD=${CMAKE_BINARY_DIR}"
  "FLOW_STAGES=${CMAKE_BINARY_DIR}/stages" "LORAFLOW_SANITIZE=${LORAFLOW_SANITIZE}"
  "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp:halt_on_error=1"
  "ASAN_OPTIONS=detect_stack_use_after_return=1" "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  # Tests share the cores: a team that spins while it waits would steal them from its neighbours.
  "OMP_WAIT_POLICY=passive")
if(LORAFLOW_SANITIZE)
  # GLib's slices hand memory from thread to thread behind the sanitizer's back.
  list(APPEND test_env "OMP_NUM_THREADS=1" "G_SLICE=always-malloc")
  set(test_scale 8)
else()
  set(test_scale 1)
endif()

function(loraflow_test_properties test src)
  file(STRINGS ${src} labels REGEX "^( \\*|#) @label " LIMIT_COUNT 1)
  string(REGEX REPLACE "^( \\*|#) @label +" "" labels "${labels}")
  separate_arguments(labels)
  file(STRINGS ${src} timeout REGEX "^( \\*|#) @timeout " LIMIT_COUNT 1)
  string(REGEX REPLACE "^( \\*|#) @timeout +" "" timeout "${timeout}")
  if(NOT timeout)
    set(timeout 30)
  endif()
  math(EXPR timeout "${timeout} * ${test_scale}")
  set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "${test_env}")
endfunction()

foreach(kind unit kernels stages)
  file(GLOB sources CONFIGURE_DEPENDS tests/${kind}/*.c)
  foreach(src ${sources})
    cmake_path(GET src STEM name)
    file(STRINGS ${src} link REGEX "^ \\* @link " LIMIT_COUNT 1)
    string(REGEX REPLACE "^ \\* @link +" "" link "${link}")
    separate_arguments(link)
    set(targets "")
    foreach(l ${link})
      string(MAKE_C_IDENTIFIER "${l}" id)
      string(TOUPPER "TEST_${id}" id)
      pkg_check_modules(${id} REQUIRED QUIET IMPORTED_TARGET ${l})
      list(APPEND targets PkgConfig::${id})
    endforeach()
    add_executable(test_${kind}_${name} ${src})
    set_target_properties(test_${kind}_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_include_directories(test_${kind}_${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(test_${kind}_${name} PRIVATE loraflow loraflow_flags PkgConfig::JANSSON Threads::Threads m ${targets})
    add_test(NAME ${kind}.${name} COMMAND test_${kind}_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    loraflow_test_properties(${kind}.${name} ${src})
  endforeach()
endforeach()
file(GLOB scripts CONFIGURE_DEPENDS tests/sh/*.sh)
foreach(src ${scripts})
  cmake_path(GET src STEM name)
  add_test(NAME sh.${name} COMMAND bash ${src} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  loraflow_test_properties(sh.${name} ${src})
endforeach()

# With LORAFLOW_FUZZ the targets are libFuzzer's and the tests fuzz for a few seconds from the corpus.
file(GLOB sources CONFIGURE_DEPENDS tests/fuzz/*.c)
list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/tests/fuzz/driver.c)
foreach(src ${sources})
  cmake_path(GET src STEM name)
  set(corpus ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name})
  add_executable(fuzz_${name} ${src})
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(fuzz_${name} PRIVATE loraflow loraflow_flags PkgConfig::JANSSON m)
  if(LORAFLOW_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/corpus/${name})
    add_test(NAME fuzz.${name} COMMAND fuzz_${name} -max_total_time=10 -timeout=5 ${CMAKE_BINARY_DIR}/corpus/${name} ${corpus})
  else()
    target_sources(fuzz_${name} PRIVATE tests/fuzz/driver.c)
    add_test(NAME fuzz.${name} COMMAND fuzz_${name} ${corpus})
  endif()
  loraflow_test_properties(fuzz.${name} ${src})
endforeach()
