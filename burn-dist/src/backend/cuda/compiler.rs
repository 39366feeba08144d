//! Finds the run-time kernel compiler.

/// Checks that the run-time kernel compiler is present. Without it the first kernel would panic.
#[cfg(feature = "cuda-nvrtc")]
#[allow(unsafe_code)]
pub(super) fn find() -> Result<(), String> {
    // First, because it also finds a library newer than the names known below.
    #[cfg(feature = "kernel-cache")]
    keep_kernels();
    // SAFETY: only tries to open the library by its usual names.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(
            "libnvrtc.so, the kernel compiler, was not found. Install the CUDA toolkit, add its \
             folder to LD_LIBRARY_PATH, or build with the feature cuda instead of cuda-nvrtc"
                .to_owned(),
        );
    }
    // The same places as cubecl.
    let places: Vec<std::path::PathBuf> = match std::env::var_os("CUDA_PATH") {
        Some(path) => vec![path.into()],
        None => ["/usr/local/cuda", "/opt/cuda", "/usr"]
            .map(Into::into)
            .into(),
    };
    // NVIDIA's Python packages put the second header in another package than the first. Without it
    // only kernels that use tensor cores fail to compile.
    let headers = ["include/cuda_runtime.h", "include/crt/mma.h"];
    let holds_all = |place: &std::path::PathBuf| headers.iter().all(|h| place.join(h).exists());
    if places.iter().any(holds_all) {
        return Ok(());
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Err(format!(
        "the CUDA headers were not found in {}. Set CUDA_PATH to a folder that contains {}",
        places.join(", "),
        headers.join(" and ")
    ))
}

/// Caches compiled kernels on disk, so that not every process compiles them.
#[cfg(feature = "kernel-cache")]
fn keep_kernels() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| match kernel_cache::keep() {
        Ok(folder) => {
            tracing::info!("kernel cache {}", folder.display());
            super::choices::keep(folder);
        }
        Err(error @ kernel_cache::Error::Folder { .. }) => {
            tracing::warn!("no kernel cache, kernels are compiled at every start: {error}");
        }
        Err(error) => {
            tracing::info!("no kernel cache, kernels are compiled at every start: {error}")
        }
    });
}

/// NVIDIA's functions, from exponentials on, need files of the toolkit: the built-in LLVM lacks
/// them.
#[cfg(all(feature = "cuda", not(feature = "cuda-nvrtc")))]
pub(super) fn find() -> Result<(), String> {
    // The same places as cubecl.
    let places: Vec<std::path::PathBuf> = match std::env::var_os("CUDA_PATH") {
        Some(path) => vec![path.into()],
        None => ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda", "/usr"]
            .map(Into::into)
            .into(),
    };
    let functions = "nvvm/libdevice/libdevice.10.bc";
    if places.iter().any(|place| place.join(functions).exists()) {
        return Ok(());
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    Err(format!(
        "{functions} of the CUDA toolkit, needed to link kernels, was not found in {}. Set \
         CUDA_PATH to a folder that contains it",
        places.join(", ")
    ))
}
