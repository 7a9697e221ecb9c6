# Installation: the program `halfnote`, and what find_package(halfnote) needs for the target
# halfnote::halfnote. The prefix can be moved; it holds copies of the two parts that Debian does not
# have (the ONNX library, oneDNN) and finds the others where they are.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/halfnote)
set(header_folder ${CMAKE_INSTALL_INCLUDEDIR}/halfnote)

# The one target that users link.
get_property(libraries GLOBAL PROPERTY HALFNOTE_LIBRARIES)
add_library(halfnote_all INTERFACE)
target_link_libraries(halfnote_all INTERFACE ${libraries})
target_compile_features(halfnote_all INTERFACE cxx_std_20)
foreach(library IN LISTS libraries ITEMS halfnote_all)
  string(REGEX REPLACE "^halfnote_(all$)?" "" exported ${library})
  if(NOT exported)
    set(exported halfnote)
  endif()
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${exported})
endforeach()
install(TARGETS ${libraries} halfnote_all EXPORT halfnoteTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT halfnoteTargets NAMESPACE halfnote:: DESTINATION ${package_folder})

if(TARGET halfnote)
  file(RELATIVE_PATH to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(halfnote PROPERTIES INSTALL_RPATH "$ORIGIN/${to_libraries}")
  install(TARGETS halfnote RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# oneDNN under the name that programs look for, and ONNX for whoever links our static libraries.
install(FILES $<TARGET_FILE:DNNL::dnnl> DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RENAME $<TARGET_SONAME_FILE_NAME:DNNL::dnnl>)
install(FILES $<TARGET_FILE:ONNX::onnx> DESTINATION ${package_folder})

# Headers. The parts of the importer that know protobuf, and single kernels, are no interface.
foreach(folder base compiler passes runtime testing)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} DESTINATION ${header_folder}
    FILES_MATCHING PATTERN "*.h"
    PATTERN "compiler/onnx/proto" EXCLUDE
    PATTERN "compiler/onnx/read" EXCLUDE
    PATTERN "compiler/onnx/write" EXCLUDE
    PATTERN "compiler/onnx/schema" EXCLUDE)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/kernels/kernel.h ${CMAKE_SOURCE_DIR}/kernels/device.h
  DESTINATION ${header_folder}/kernels)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/halfnoteParts.cmake CONTENT
"set(halfnote_onnx_file \"$<TARGET_FILE_NAME:ONNX::onnx>\")
set(halfnote_dnnl_file \"$<TARGET_SONAME_FILE_NAME:DNNL::dnnl>\")
")
set(halfnote_with_cuda OFF)
if(TARGET halfnote_cuda_device)
  set(halfnote_with_cuda ON)
endif()
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/halfnoteConfig.cmake.in
  ${CMAKE_BINARY_DIR}/halfnoteConfig.cmake INSTALL_DESTINATION ${package_folder}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/halfnoteConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/halfnoteConfig.cmake ${CMAKE_BINARY_DIR}/halfnoteParts.cmake
  ${CMAKE_BINARY_DIR}/halfnoteConfigVersion.cmake DESTINATION ${package_folder})
