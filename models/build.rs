//! Names what many places ask for: whether the operations of `kernels::gpu` are there and take Burn's tensors.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(own_gpu)");
    let has = |feature: &str| std::env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    if has("WGPU") || has("CUDA") {
        println!("cargo::rustc-cfg=own_gpu");
    }
}
