//! Networks, what they carry, and certificates that expire soon.

use super::servers::Reports;
use crate::hosting::authority::{self, seconds};
use crate::hosting::node::Node;
use hekate_control::access::{NetworkAddress, NetworkSet, NetworkStatus};
use hekate_control::status::{ExpiringCertificate, NetworkTraffic};
use hekate_proto::{Error, Result};
use hekate_threads::time_of_day;
use hekate_tls::{CertificateInfo, pems};
use std::collections::BTreeMap;

/// A certificate that expires within this time is shown and logged, in seconds: 14 days.
const SOON: u64 = 14 * 24 * 3600;

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

/// Certificates that expire within 14 days.
///
/// # Errors
///
/// Those of the coordinator.
pub fn expiring(node: &Node, reports: &Reports) -> Result<Vec<ExpiringCertificate>> {
    let mut found = Vec::new();
    let Some(keys) = node.cluster.keys() else { return Ok(found) };
    let last = seconds(time_of_day()) + SOON;
    let mut check = |holder: String, expires: u64, fix: &str| {
        if expires <= last {
            found.push(ExpiringCertificate { holder, expires, fix: fix.into() });
        }
    };
    for (name, report) in reports.named() {
        if let Some(expires) = report.certificate_expires {
            check(name, expires, "its log says why it is not renewed");
        }
    }
    let registry = node.cluster.registry();
    check("the issuing key".into(), seconds(authority::issuing(registry, keys.seal())?.not_after), "hekate ca rotate");
    for root in pems(&authority::record(registry)?.roots.concat())? {
        check("the root".into(), seconds(CertificateInfo::of(&root)?.not_after), "hekate ca rotate");
    }
    for client in registry.clients()?.into_iter().filter(|client| !client.revoked) {
        let expires = client.certificates.last().map(|newest| newest.expires).unwrap_or_default();
        check(format!("client {}", client.name), expires, "hekate client renew");
    }
    Ok(found)
}
