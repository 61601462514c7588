//! From a component's bytes to something that can be instantiated in microseconds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_protocol::id::{TenantId, VersionId};
use belljar_protocol::ports::Blobs;
use belljar_protocol::scratch::Digest;
use belljar_protocol::version::World;
use tokio::sync::OnceCell;
use wasmtime::Engine;
use wasmtime::component::types::{ComponentItem, Type};
use wasmtime::component::{Component, InstancePre, Linker};

use crate::bindings::json::AgentJsonPre;
use crate::bindings::typed::AgentPre;
use crate::cache::Cache;
use crate::error::SandboxError;
use crate::host::Host;

/// A compiled component, linked, its export checked.
pub(crate) enum Compiled {
    /// The world `agent`.
    Typed(AgentPre<Host>),
    /// The world `agent-json`.
    Json(AgentJsonPre<Host>),
}

impl Compiled {
    pub(crate) fn world(&self) -> World {
        match self {
            Self::Typed(_) => World::Agent,
            Self::Json(_) => World::AgentJson,
        }
    }

    /// Links a component and finds which world it exports. The error quotes the mismatch.
    pub(crate) fn link(linker: &Linker<Host>, component: &Component) -> wasmtime::Result<Self> {
        Self::of(linker.instantiate_pre(component)?)
    }

    /// Finds which world a linked component exports.
    pub(crate) fn of(pre: InstancePre<Host>) -> wasmtime::Result<Self> {
        // Both worlds export `decide`; what it takes tells them apart.
        let component = pre.component();
        let ty = component.component_type();
        let decide = ty.exports(pre.engine()).find(|(name, _)| *name == "decide");
        let Some((_, decide)) = decide else {
            let names: Vec<_> = ty
                .exports(pre.engine())
                .map(|(name, _)| format!("`{name}`"))
                .collect();
            let found = if names.is_empty() {
                "exports nothing".into()
            } else {
                format!("exports {}", names.join(", "))
            };
            return Err(wasmtime::format_err!(
                "the component has no export `decide`; it {found}"
            ));
        };
        let takes_text = match decide.ty {
            ComponentItem::ComponentFunc(func) => func
                .params()
                .next()
                .is_some_and(|(_, ty)| ty == Type::String),
            _ => false,
        };
        if takes_text {
            AgentJsonPre::new(pre).map(Self::Json)
        } else {
            AgentPre::new(pre).map(Self::Typed)
        }
    }
}

/// The components in memory, each compiled once however many ask at the same time.
pub(crate) struct Compiler {
    pub(crate) engine: Engine,
    pub(crate) linker: Linker<Host>,
    cache: Cache,
    slots: Mutex<Slots>,
    most: usize,
}

#[derive(Default)]
struct Slots {
    by_version: HashMap<VersionId, Slot>,
    uses: u64,
}

struct Slot {
    cell: Arc<OnceCell<Arc<Compiled>>>,
    used: u64,
}

impl Compiler {
    pub(crate) fn new(engine: Engine, linker: Linker<Host>, cache: Cache, most: usize) -> Self {
        Self {
            engine,
            linker,
            cache,
            slots: Mutex::default(),
            most: most.max(1),
        }
    }

    fn cell(&self, version: &VersionId) -> Arc<OnceCell<Arc<Compiled>>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.uses += 1;
        let used = slots.uses;
        if let Some(slot) = slots.by_version.get_mut(version) {
            slot.used = used;
            return slot.cell.clone();
        }
        if slots.by_version.len() >= self.most {
            // Whoever runs the evicted one keeps it; it is loaded from disk the next time.
            let oldest = slots
                .by_version
                .iter()
                .min_by_key(|(_, slot)| slot.used)
                .map(|(v, _)| v.clone());
            oldest.and_then(|version| slots.by_version.remove(&version));
        }
        let cell = Arc::new(OnceCell::new());
        slots.by_version.insert(
            version.clone(),
            Slot {
                cell: cell.clone(),
                used,
            },
        );
        cell
    }

    /// The component of a version: from memory, from the cache, or compiled from its bytes.
    /// That the tenant owns the version, whoever made the job has looked.
    pub(crate) async fn get(
        self: &Arc<Self>,
        tenant: &TenantId,
        version: &VersionId,
        blobs: &Arc<dyn Blobs>,
    ) -> Result<Arc<Compiled>, SandboxError> {
        let cell = self.cell(version);
        if let Some(ready) = cell.get() {
            return Ok(ready.clone());
        }
        let made = cell
            .get_or_try_init(|| self.make(tenant, version, blobs))
            .await;
        made.cloned()
    }

    async fn make(
        self: &Arc<Self>,
        tenant: &TenantId,
        version: &VersionId,
        blobs: &Arc<dyn Blobs>,
    ) -> Result<Arc<Compiled>, SandboxError> {
        let missing = || SandboxError::ComponentMissing {
            version: version.to_string(),
        };
        let unusable = |error: &dyn std::fmt::Display| SandboxError::ComponentUnusable {
            version: version.to_string(),
            reason: error.to_string(),
        };
        let digest = version
            .as_str()
            .strip_prefix("sha256:")
            .and_then(Digest::parse)
            .ok_or_else(missing)?;
        let (this, wanted) = (self.clone(), digest.clone());
        let cached = blocking(move || this.cache.load(&this.engine, &wanted)).await?;
        let component = match cached {
            Some(component) => component,
            None => {
                let bytes = blobs
                    .blob(tenant, &digest)
                    .await
                    .map_err(|error| SandboxError::host("reading a component", error))?
                    .ok_or_else(missing)?;
                let (this, wanted) = (self.clone(), digest.clone());
                blocking(move || {
                    if Digest::of(&bytes) != wanted {
                        return Err(wasmtime::format_err!(
                            "its bytes are not the ones that were uploaded"
                        ));
                    }
                    let component = this.compile(&bytes)?;
                    this.cache_image(&wanted, &component);
                    Ok(component)
                })
                .await?
                .map_err(|error| unusable(&format!("{error:#}")))?
            }
        };
        Compiled::link(&self.linker, &component)
            .map(Arc::new)
            .map_err(|error| unusable(&format!("{error:#}")))
    }

    /// Compiles. Takes seconds for a large component.
    pub(crate) fn compile(&self, bytes: &[u8]) -> wasmtime::Result<Component> {
        // Never text, and never an image somebody else compiled.
        if Engine::detect_precompiled(bytes).is_some() {
            return Err(wasmtime::format_err!(
                "it is a precompiled image, not a component"
            ));
        }
        Component::from_binary(&self.engine, bytes)
    }

    /// Writes a compiled image to disk, for the next process.
    pub(crate) fn cache_image(&self, digest: &Digest, component: &Component) {
        if let Err(error) = self.cache.store(digest, component) {
            tracing::warn!(component = %digest, %error, "a compiled image was not kept, it is compiled again after a restart");
        }
    }

    /// Keeps what an upload has just compiled.
    pub(crate) fn keep(&self, version: &VersionId, compiled: Arc<Compiled>) {
        // Somebody else's equal component may be there already.
        let _ = self.cell(version).set(compiled);
    }
}

/// Runs what takes long beside the guests.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(|error| SandboxError::host("compiling a component", error))
}
