//! Compiled components on disk: `cache/<compatibility>/<component's sha256>.cwasm`.
//!
//! A compiled image is trusted code, so only what this host wrote is loaded: each file begins
//! with a MAC over the component's digest, the compatibility hash and the image, under a key
//! that lies outside the folder, and it is checked on the bytes that are then loaded.

use std::fs::{self, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_protocol::scratch::Digest;
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::mac;
use crate::scratch::private_dir;

const MAC: usize = 32;
const PURPOSE: &[u8] = b"belljar compiled component 1";

/// The compiled images of one engine.
pub(crate) struct Cache {
    dir: PathBuf,
    compatibility: [u8; 32],
    key: mac::Key,
}

impl Cache {
    /// Opens the cache below `data_dir`, with its key in `data_dir/cache.key`.
    pub(crate) fn open(data_dir: &Path, engine: &Engine) -> io::Result<Self> {
        let key = mac::Key::new(&read_or_make_key(&data_dir.join("cache.key"))?);
        let compatibility = compatibility(engine);
        let above = data_dir.join("cache");
        private_dir(&above)?;
        let dir = above.join(hex::encode(compatibility));
        private_dir(&dir)?;
        Ok(Self {
            dir,
            compatibility,
            key,
        })
    }

    fn path(&self, component: &Digest) -> PathBuf {
        self.dir.join(format!("{component}.cwasm"))
    }

    fn code(&self, component: &Digest, image: &[u8]) -> [u8; MAC] {
        self.key.code(&[
            PURPOSE,
            component.as_str().as_bytes(),
            &self.compatibility,
            image,
        ])
    }

    /// Loads an image; none when there is none that can be trusted.
    pub(crate) fn load(&self, engine: &Engine, component: &Digest) -> Option<Component> {
        let bytes = match fs::read(self.path(component)) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%component, %error, "a compiled image cannot be read, compiling again");
                }
                return None;
            }
        };
        let (code, image) = bytes.split_at_checked(MAC)?;
        if !mac::same(code, &self.code(component, image)) {
            tracing::warn!(%component, "a compiled image is not one this host wrote, compiling again");
            return None;
        }
        match deserialize(engine, image) {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                tracing::warn!(%component, %error, "a compiled image does not load, compiling again");
                None
            }
        }
    }

    /// Keeps an image: written aside, synced, renamed.
    pub(crate) fn store(&self, component: &Digest, compiled: &Component) -> io::Result<()> {
        let image = compiled.serialize().map_err(io::Error::other)?;
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let aside = self
            .dir
            .join(format!("{component}.{}-{number}.new", std::process::id()));
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&aside)?;
            file.write_all(&self.code(component, &image))?;
            file.write_all(&image)?;
            file.sync_all()?;
            fs::rename(&aside, self.path(component))?;
            File::open(&self.dir)?.sync_all()
        })();
        if written.is_err() {
            // The error worth telling is the first one.
            let _ = fs::remove_file(&aside);
        }
        written
    }
}

#[allow(unsafe_code)]
fn deserialize(engine: &Engine, image: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must be what `Component::serialize` gave. The MAC over exactly this
    // slice, under a key only this host reads, was checked by the one caller, so this host wrote
    // them; that they fit this engine, wasmtime checks itself.
    unsafe { Component::deserialize(engine, image) }
}

/// Everything that makes an image of one engine useless to another.
fn compatibility(engine: &Engine) -> [u8; 32] {
    struct Into256(Sha256);
    impl Hasher for Into256 {
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
        fn finish(&self) -> u64 {
            0
        }
    }
    let mut hasher = Into256(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.0.finalize().into()
}

fn read_or_make_key(path: &Path) -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    match File::open(path) {
        Ok(mut file) => {
            file.read_exact(&mut key)?;
            Ok(key)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            File::open("/dev/urandom")?.read_exact(&mut key)?;
            let aside = path.with_extension(format!("{}.new", std::process::id()));
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&aside)?;
            file.write_all(&key)?;
            file.sync_all()?;
            fs::rename(&aside, path)?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}
