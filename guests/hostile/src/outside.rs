//! Attacks that look for the world outside: input, time and chance, the network, the environment.

use std::io::Read;

use serde_json::{Value, json};
use wasip2::clocks::{monotonic_clock, wall_clock};
use wasip2::random::random;
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::network::{IpAddressFamily, IpSocketAddress, Ipv4SocketAddress};
use wasip2::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};

use crate::{Args, End};

pub fn stdin() -> End {
    let mut input = Vec::new();
    let result = std::io::stdin().take(1 << 20).read_to_end(&mut input);
    End::Report(match result {
        Ok(bytes) => json!({ "bytes": bytes, "error": null }),
        Err(error) => json!({ "bytes": input.len(), "error": error.to_string() }),
    })
}

/// What a decision that runs again must see again.
pub fn clock() -> End {
    let now = wall_clock::now();
    let random: String = random::get_random_bytes(16)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    End::Report(json!({
        "wall_nanos": now.seconds * 1_000_000_000 + u64::from(now.nanoseconds),
        "monotonic_nanos": monotonic_clock::now(),
        "random": random,
    }))
}

/// Each entry is `ok` for what worked and the error for what did not. The raw interface is used: it tells
/// which step was refused, and does not depend on what the libc of the build can do.
pub fn network(args: &Args) -> End {
    let port = u16::try_from(args.number("port", 80)).unwrap_or(80);
    let address = |port| {
        IpSocketAddress::Ipv4(Ipv4SocketAddress {
            port,
            address: (127, 0, 0, 1),
        })
    };
    let network = instance_network();
    let tcp = |step: fn(&wasip2::sockets::tcp::TcpSocket, _, _) -> _, port| {
        let socket = tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4)?;
        step(&socket, &network, address(port))
    };
    let udp = || {
        let socket = udp_create_socket::create_udp_socket(IpAddressFamily::Ipv4)?;
        socket.start_bind(&network, address(0))
    };
    let lookup = |name| ip_name_lookup::resolve_addresses(&network, name)?.resolve_next_address();
    End::Report(json!({
        "tcp-connect": outcome(tcp(|socket, network, to| socket.start_connect(network, to), port)),
        "tcp-bind": outcome(tcp(|socket, network, to| socket.start_bind(network, to), 0)),
        "udp-bind": outcome(udp()),
        "lookup": outcome(lookup(args.text("host", "localhost"))),
    }))
}

fn outcome<T>(result: Result<T, wasip2::sockets::network::ErrorCode>) -> Value {
    Value::from(result.map_or_else(|error| error.name(), |_| "ok"))
}

pub fn env() -> End {
    End::Report(json!({
        "env": std::env::vars().collect::<Vec<_>>(),
        "args": std::env::args().collect::<Vec<_>>(),
    }))
}
