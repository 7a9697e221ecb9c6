# halfnote_common_options(TARGET): the flags of all our own code.
function(halfnote_common_options target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  # The same arithmetic everywhere: no contraction of a*b+c, so that results do not depend on the
  # instruction set.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(HALFNOTE_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=${HALFNOTE_SANITIZE})
  endif()
endfunction()

# Null pointers, and what lies behind an object, are the address sanitizer's; without these four a
# build takes a quarter less.
set(halfnote_sanitizers
  -fsanitize=${HALFNOTE_SANITIZE} -fno-sanitize=null,object-size,vptr,pointer-overflow
  -fno-sanitize-recover=all -fno-omit-frame-pointer ${HALFNOTE_SANITIZED_FLAGS})

# halfnote_options(TARGET): the flags of all that users run.
function(halfnote_options target)
  halfnote_common_options(${target})
  if(HALFNOTE_SANITIZE)
    target_compile_options(${target} PRIVATE ${halfnote_sanitizers})
    # Kernels load packs of elements, and readers of files what lies at any address (the fuzz
    # targets): there an address must fit its type. The emulator looks at its packs itself, and
    # elsewhere these checks are half of the code.
    if(NOT HALFNOTE_FUZZ AND NOT target MATCHES "^halfnote_(base|kernels)$")
      target_compile_options(${target} PRIVATE -fno-sanitize=alignment)
    endif()
  endif()
endfunction()

# halfnote_precompile(TARGET HEADER…): heavy headers, most of them not our own, parsed once a
# target. A file that forgets to include one does not compile with
# -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON.
function(halfnote_precompile target)
  if(HALFNOTE_FUZZ)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE ${ARGN})
  target_compile_options(${target} PRIVATE -fpch-preprocess)  # what ccache needs to see
endfunction()

# halfnote_unity(TARGET): neighbouring files are compiled together, so that headers are parsed and
# templates instantiated once for several files. Anonymous names must differ within a folder. The
# preset debug compiles each file alone: a file that leans on its neighbour fails there.
function(halfnote_unity target)
  if(HALFNOTE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    # An anonymous type in a class of the same file: the compiler takes the file for a header.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# halfnote_library(NAME [FOLDER dir] [EXCLUDE regex] [LINK public…] [PRIVATE private…]): all sources
# below a folder as halfnote_NAME.
function(halfnote_library name)
  cmake_parse_arguments(arg "" "FOLDER;EXCLUDE" "LINK;PRIVATE" ${ARGN})
  if(NOT arg_FOLDER)
    set(arg_FOLDER ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${arg_FOLDER}/*.cc)
  if(arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${arg_EXCLUDE})
  endif()
  set(target halfnote_${name})
  if(sources)
    add_library(${target} STATIC ${sources})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include/halfnote>)
    target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE})
    halfnote_options(${target})
    if(NOT name STREQUAL kernels)  # their time goes into optimisation, not into headers
      halfnote_unity(${target})
    endif()
    halfnote_precompile(${target} <algorithm> <array> <cmath> <functional> <map> <memory>
      <optional> <set> <span> <string> <string_view> <variant> <vector>)
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_LINK} ${arg_PRIVATE})
  endif()
  add_library(halfnote::${name} ALIAS ${target})
  set_property(GLOBAL APPEND PROPERTY HALFNOTE_LIBRARIES ${target})
endfunction()

# halfnote_built(NAME FILE LINK libraries…): halfnote_NAME as another build made it.
function(halfnote_built name file)
  cmake_parse_arguments(arg "" "" "LINK" ${ARGN})
  add_library(halfnote_${name} STATIC IMPORTED GLOBAL)
  set_target_properties(halfnote_${name} PROPERTIES
    IMPORTED_LOCATION ${HALFNOTE_KERNELS_FROM}/${file})
  target_link_libraries(halfnote_${name} INTERFACE ${arg_LINK})
  add_library(halfnote::${name} ALIAS halfnote_${name})
endfunction()
