//! Conversion of an allocation in a machine file to the form that the agent receives.

use super::AllocationSpec;
use model::allocation;

impl AllocationSpec {
    /// Converts the fields of the file. The result contains only the id of the image, and lacks the layout and the
    /// state of the installation.
    pub fn to_agent_allocation(&self) -> allocation::Allocation {
        let passed_on = |name: &str| self.passed_on.get(name).cloned().unwrap_or_default();
        allocation::Allocation {
            id: self.id.to_string(),
            name: self.name.clone(),
            project: self.project.clone(),
            hostname: self.hostname.clone(),
            role: self.role.clone(),
            image: allocation::AllocatedImage { id: self.image.to_string(), ..allocation::AllocatedImage::default() },
            networks: passed_on("networks"),
            network: passed_on("network"),
            volumes: passed_on("volumes"),
            ssh_pub_keys: self.ssh_pub_keys.clone(),
            user_data: self.user_data.clone(),
            console_password: self.console_password.clone(),
            disk_key: self.disk_key.as_deref().cloned().unwrap_or_default(),
            dns_servers: passed_on("dns_servers"),
            ntp_servers: passed_on("ntp_servers"),
            firewall_rules: passed_on("firewall_rules"),
            vpn: passed_on("vpn"),
            finish: self.finish,
            kernel_arguments: self.kernel_arguments.iter().map(|argument| argument.to_string()).collect(),
            boot_order: self.boot_order,
            erase: self.erase,
            give_up: self.give_up.iter().map(|given| given.trim().to_owned()).collect(),
            ..allocation::Allocation::default()
        }
    }
}
