//! The images' last stages, built by a real `buildah` (`PROXIUM_BUILDAH`). What the stages before them compile and the base image are
//! stood in for: nothing can be pulled here.

use super::{output, text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A store of images of its own, gone in the end.
struct Buildah {
    program: PathBuf,
    dir: PathBuf,
}

impl Buildah {
    fn new(name: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("PROXIUM_BUILDAH").map(PathBuf::from) else {
            eprintln!("skipped: PROXIUM_BUILDAH names no buildah");
            return None;
        };
        let dir = std::env::temp_dir().join(format!("proxium-images-{}-{name}", std::process::id()));
        std::fs::create_dir_all(dir.join("context")).unwrap();
        Some(Self { program, dir })
    }

    fn context(&self) -> PathBuf {
        self.dir.join("context")
    }

    fn run(&self, args: &[&str]) -> String {
        let stores = [("--root", "store"), ("--runroot", "run")].map(|(flag, dir)| format!("{flag}={}", self.dir.join(dir).display()));
        output(Command::new(&self.program).args(stores).arg("--storage-driver=vfs").args(args))
    }

    /// Builds the context by these stages, and tells what the image says of itself.
    fn build(&self, stages: &str) -> Value {
        std::fs::write(self.context().join("Dockerfile"), stages).unwrap();
        self.run(&["bud", "--isolation=chroot", "--format=oci", "--quiet", "--tag=image", &self.context().display().to_string()]);
        let image: Value = serde_json::from_str(&self.run(&["inspect", "--type=image", "image"])).unwrap();
        image["OCIv1"]["config"].clone()
    }
}

impl Drop for Buildah {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

/// The last stage of a Dockerfile: what it is made from, and what follows.
fn last_stage(file: &str) -> (String, String) {
    let text = text(&format!("images/{file}"));
    let (base, rest) = text.rsplit_once("\nFROM ").unwrap().1.split_once('\n').unwrap();
    (base.to_owned(), rest.to_owned())
}

#[test]
fn the_filters_image_is_one_layer_with_the_filter_as_istios_agent_reads_it() {
    let Some(buildah) = Buildah::new("filter") else { return };
    let real = std::env::var_os("PROXIUM_WASM").and_then(|path| std::fs::read(path).ok());
    let filter = real.unwrap_or_else(|| b"\0asm\x01\0\0\0".to_vec());
    std::fs::write(buildah.context().join("plugin.wasm"), &filter).unwrap();
    let (base, rest) = last_stage("filter.Dockerfile");
    buildah.build(&format!("FROM scratch AS build\nCOPY plugin.wasm /plugin.wasm\nFROM {base}\n{rest}"));

    let layout = buildah.dir.join("layout");
    buildah.run(&["push", "image", &format!("oci:{}:1", layout.display())]);
    let blob = |digest: &Value| layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let json = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let index = json(&layout.join("index.json"));
    assert_eq!(index["manifests"][0]["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    let manifest = json(&blob(&index["manifests"][0]["digest"]));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json");
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1, "{manifest}");
    assert_eq!(layers[0]["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
    let layer = blob(&layers[0]["digest"]);
    assert_eq!(output(Command::new("tar").arg("-tzf").arg(&layer)), "plugin.wasm\n");
    let unpacked = Command::new("tar").arg("-xzOf").arg(&layer).arg("plugin.wasm").output().unwrap();
    assert!(unpacked.stdout == filter, "the layer holds other bytes");
}

#[test]
fn the_control_planes_image_runs_without_a_shell_as_nobody() {
    let Some(buildah) = Buildah::new("control-plane") else { return };
    let binary = Path::new(env!("CARGO_BIN_EXE_proxium"));
    std::fs::copy(binary, buildah.context().join("proxium")).unwrap();
    // All that it needs of a base image is the C library.
    let libraries = output(Command::new("ldd").arg(binary));
    let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    for library in libraries {
        let name = library.rsplit('/').next().unwrap();
        let known = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"].iter().any(|known| name.starts_with(known));
        assert!(known, "{name} is not in distroless/cc");
        let copy = buildah.context().join("libraries").join(library.trim_start_matches('/'));
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(library, copy).unwrap();
    }
    let (base, rest) = last_stage("control-plane.Dockerfile");
    assert_eq!(base, "gcr.io/distroless/cc-debian12:nonroot");
    let stages = "FROM scratch AS build\nCOPY proxium /proxium\nFROM scratch AS base\nCOPY libraries /\n";
    let config = buildah.build(&format!("{stages}FROM base\n{rest}"));
    assert_eq!(config["User"], "65532:65532");
    assert_eq!((&config["Entrypoint"][0], &config["Cmd"][0]), (&"/usr/local/bin/proxium".into(), &"serve".into()));
    let ports: Vec<&String> = config["ExposedPorts"].as_object().unwrap().keys().collect();
    assert_eq!(ports, ["10001/tcp", "10003/tcp"]);

    let container = buildah.run(&["from", "image"]);
    let run =
        |args: &[&str]| buildah.run(&[&["run", "--isolation=chroot", container.trim(), "--", "/usr/local/bin/proxium"], args].concat());
    assert!(run(&["--version"]).starts_with("proxium "));
}
