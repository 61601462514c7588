//! How many decisions are resident at once: the rest wait, none fails for want of room.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use belljar_protocol::id::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for decisions, some of them at most for one tenant. First come, first served.
pub(crate) struct Gate {
    all: Arc<Semaphore>,
    per_tenant: usize,
    tenants: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

/// A place, until dropped.
pub(crate) struct Place {
    _tenant: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Gate {
    pub(crate) fn new(all: u32, per_tenant: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all.max(1) as usize)),
            per_tenant: per_tenant.max(1) as usize,
            tenants: Mutex::default(),
        }
    }

    /// Waits for a place; none only when the gate is gone.
    pub(crate) async fn enter(&self, tenant: &TenantId) -> Option<Place> {
        let own = {
            let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            if tenants.len() > 1_024 {
                tenants.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
            }
            tenants
                .entry(tenant.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(self.per_tenant)))
                .clone()
        };
        // Its own place first, so that a tenant's queue never holds places others could have.
        let tenant = own.acquire_owned().await.ok()?;
        let all = self.all.clone().acquire_owned().await.ok()?;
        Some(Place {
            _tenant: tenant,
            _all: all,
        })
    }
}
