//! Networks, what they carry, and certificates that expire soon.

use super::servers::Reports;
use crate::hosting::access::EXPIRES_SOON;
use crate::hosting::authority::seconds;
use crate::hosting::node::Node;
use hekate_control::access::{NetworkAddress, NetworkSet, NetworkStatus};
use hekate_control::peer::ServerReport;
use hekate_control::status::{ExpiringCertificate, NetworkTraffic};
use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use std::collections::BTreeMap;

/// What the networks carry: the sums over all servers that answer.
pub fn traffic(reports: &Reports) -> Vec<NetworkTraffic> {
    let mut sums: BTreeMap<String, NetworkTraffic> = BTreeMap::new();
    for row in reports.said().flat_map(|report| &report.networks) {
        let sum = sums.entry(row.network.clone()).or_default();
        sum.network.clone_from(&row.network);
        sum.connections += row.connections;
        sum.received_bytes += row.received_bytes;
        sum.sent_bytes += row.sent_bytes;
        sum.round_trips += row.round_trips;
    }
    sums.into_values().collect()
}

/// All networks.
///
/// # Errors
///
/// Those of the coordinator.
pub fn list(node: &Node) -> Result<Vec<NetworkStatus>> {
    let traffic = traffic(&Reports::gather(node)?);
    let of_servers = node.cluster.registry().servers_network()?;
    let mut networks: BTreeMap<String, NetworkStatus> = BTreeMap::new();
    for info in node.cluster.registry().servers()? {
        for (endpoint, network) in &info.networks {
            let address = endpoint.trim_start_matches("tcp:").to_string();
            let row = networks.entry(network.clone()).or_default();
            row.traffic.network.clone_from(network);
            row.addresses.push(NetworkAddress { server: info.server, address });
        }
    }
    for (name, row) in &mut networks {
        row.for_servers = *name == of_servers;
        if let Some(found) = traffic.iter().find(|found| found.network == *name) {
            row.traffic = found.clone();
        }
    }
    Ok(networks.into_values().collect())
}

/// Names the network that servers use among themselves.
///
/// # Errors
///
/// `Invalid` if some server has no address there; those of the coordinator.
pub fn set(node: &Node, call: &NetworkSet) -> Result<Vec<NetworkStatus>> {
    let network = &call.network;
    let servers = node.cluster.registry().servers()?;
    let is_absent = |info: &&hekate_cluster::ServerInfo| !info.networks.values().any(|at| at == network);
    let absent: Vec<&str> = servers.iter().filter(is_absent).map(|info| &info.name[..]).collect();
    if !absent.is_empty() {
        return Err(Error::invalid(format!(
            "{} have no address at network {network}; serve them with `--listen {network}=ADDRESS:PORT` first",
            absent.join(", ")
        )));
    }
    node.cluster.registry().set_servers_network(network)?;
    list(node)
}

/// Certificates that expire within 14 days: of the servers that answer, of the authority, of clients.
pub fn expiring(node: &Node, reports: &Reports) -> Vec<ExpiringCertificate> {
    let of_other = |(name, report): (String, &ServerReport)| {
        let fix = "its log says why it is not renewed".into();
        report.certificate_expires.map(|expires| ExpiringCertificate { holder: name, expires, fix })
    };
    let own = node.cluster.expiries();
    let others = reports.named().filter_map(of_other).filter(|other| own.iter().all(|own| own.holder != other.holder));
    let last = seconds(time_of_day()) + EXPIRES_SOON;
    others.chain(own.iter().cloned()).filter(|ending| ending.expires <= last).collect()
}
