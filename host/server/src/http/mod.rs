//! Routes: requests become calls on [`Host`], its answers become responses.
//!
//! [`routes`] lists them all; the OpenAPI document is made of the same list. A file per noun
//! holds the handlers. Errors are problem details, made in one place.

mod agents;
mod files;
mod gate;
mod health;
mod log;
mod openapi;
mod problems;
mod routes;
mod sessions;
#[cfg(test)]
mod tests;

use std::future::Future;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::serve::ListenerExt;
use belljar_protocol::id::TenantId;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;

use crate::driver::Host;

/// How the server behaves.
#[derive(Debug, Clone, Default)]
pub struct HttpConfig {
    /// Names beside the loopback ones under which the server may be called; requests for others
    /// are refused, so that a page of another site cannot reach it by rebinding a name.
    pub hosts: Vec<String>,
}

/// What handlers share.
#[derive(Clone)]
struct App {
    host: Host,
    config: std::sync::Arc<HttpConfig>,
    /// Turns true when the server stops: streams end then.
    stopping: watch::Receiver<bool>,
}

impl App {
    /// The tenant of a caller: the built-in one, until keys exist.
    fn tenant(&self) -> TenantId {
        TenantId::built_in()
    }
}

/// The routes over a host. The router lives as long as it is used; streams end with it.
pub fn router(host: Host, config: HttpConfig) -> Router {
    let (alive, stopping) = watch::channel(false);
    // Nobody stops a bare router: its streams end with their clients.
    std::mem::forget(alive);
    build(App {
        host,
        config: config.into(),
        stopping,
    })
}

fn build(app: App) -> Router {
    let routes = routes::ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(route.path, (route.handler)())
    });
    guarded(routes, app)
}

/// Routes behind what holds for all of them.
fn guarded(routes: Router<App>, app: App) -> Router {
    routes
        .fallback(problems::no_such_route)
        .method_not_allowed_fallback(problems::no_such_method)
        .layer(from_fn_with_state(app.clone(), gate::check))
        .layer(CatchPanicLayer::custom(problems::panicked))
        .with_state(app)
}

/// Serves until `shutdown` resolves; then takes no more connections, ends its streams, and waits
/// for the requests under way.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    host: Host,
    config: HttpConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (stop, stopping) = watch::channel(false);
    let app = App {
        host,
        config: config.into(),
        stopping,
    };
    // A token is a small write: it must not wait for the acknowledgement of the one before it.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps small writes back");
        }
    });
    axum::serve(listener, build(app))
        .with_graceful_shutdown(async move {
            shutdown.await;
            // No receiver left means that no stream is open.
            let _ = stop.send(true);
        })
        .await
}
