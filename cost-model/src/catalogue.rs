//! What is known of devices and links: the shipped profiles, and those that a user adds.

use crate::error::CostError;
use crate::link::{Link, LinkProfile};
use crate::profile::Profile;
use std::collections::BTreeMap;

/// The files of `profiles/`. A new profile is its file and its line here.
const SHIPPED: &[&str] = &[
    include_str!("../profiles/v100-sxm2-32gb.json"),
    include_str!("../profiles/a100-sxm-40gb.json"),
    include_str!("../profiles/a100-sxm-80gb.json"),
    include_str!("../profiles/h100-sxm-80gb.json"),
    include_str!("../profiles/h200-sxm-141gb.json"),
    include_str!("../profiles/cpu.json"),
];

const SHIPPED_LINKS: &str = include_str!("../profiles/links.json");

/// Devices and links by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    devices: BTreeMap<String, Profile>,
    links: BTreeMap<String, LinkProfile>,
}

impl Catalogue {
    /// What comes with planc.
    pub fn shipped() -> Result<Self, CostError> {
        let mut catalogue = Self::default();
        let links: Vec<LinkProfile> = serde_json::from_str(SHIPPED_LINKS)
            .map_err(|e| CostError::BadProfile { profile: "links".into(), why: e.to_string() })?;
        for link in links {
            catalogue.add_link(link)?;
        }
        for text in SHIPPED {
            catalogue.add_device(Profile::from_json(text)?)?;
        }
        Ok(catalogue)
    }

    /// Adds a device, or replaces the one of that name.
    pub fn add_device(&mut self, profile: Profile) -> Result<(), CostError> {
        profile.validate()?;
        self.link(&profile.node.intra)?;
        self.link(&profile.node.inter)?;
        self.devices.insert(profile.name.clone(), profile);
        Ok(())
    }

    /// Adds a link, or replaces the one of that name.
    pub fn add_link(&mut self, link: LinkProfile) -> Result<(), CostError> {
        Link::from(&link).validate(&format!("link `{}`", link.name))?;
        self.links.insert(link.name.clone(), link);
        Ok(())
    }

    /// The device of this name or alias, in any case.
    pub fn device(&self, name: &str) -> Result<&Profile, CostError> {
        let wanted = name.to_lowercase();
        self.devices
            .get(&wanted)
            .or_else(|| self.devices.values().find(|p| p.aliases.contains(&wanted)))
            .ok_or_else(|| CostError::UnknownDevice { name: name.into(), known: self.known() })
    }

    /// The link of this name.
    pub fn link(&self, name: &str) -> Result<Link, CostError> {
        self.links.get(&name.to_lowercase()).map(Link::from).ok_or_else(|| {
            let known: Vec<&str> = self.links.keys().map(String::as_str).collect();
            CostError::UnknownLink { name: name.into(), known: known.join(", ") }
        })
    }

    /// All devices, by name.
    pub fn devices(&self) -> impl Iterator<Item = &Profile> {
        self.devices.values()
    }

    /// All links, by name.
    pub fn links(&self) -> impl Iterator<Item = &LinkProfile> {
        self.links.values()
    }

    fn known(&self) -> String {
        let names = self.devices.values().map(|p| match p.aliases.first() {
            Some(alias) => format!("{} ({alias})", p.name),
            None => p.name.clone(),
        });
        names.collect::<Vec<_>>().join(", ")
    }
}
