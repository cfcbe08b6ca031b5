# CMake includes this when llama.cpp's own project begins (tools/source_wheel.py asks for it).

# llama-cpp-python insists on the library that llama.cpp's programs share; it takes a third of the time and is not used.
set(LLAMA_BUILD_COMMON OFF)

# There is no way to choose among the variants for CPUs: those in LEFT_OUT_VARIANTS become libraries with nothing in them.
function(empty_variants)
    set(nothing "${CMAKE_BINARY_DIR}/nothing.c")
    file(WRITE "${nothing}" "")
    foreach(variant IN LISTS LEFT_OUT_VARIANTS)
        if(TARGET ggml-cpu-${variant})
            set_target_properties(ggml-cpu-${variant} PROPERTIES SOURCES "${nothing}" LINK_LIBRARIES "")
            set_target_properties(ggml-cpu-${variant}-feats PROPERTIES EXCLUDE_FROM_ALL TRUE)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL empty_variants)
