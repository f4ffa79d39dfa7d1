//! The flags that name a cluster, shared by the verbs that plan.

use super::error::CliError;
use planc_cost_model::{Catalogue, Cluster, CostModel};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    /// Number of devices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub gpus: Option<u32>,
    /// Device type.
    #[arg(long, value_name = "NAME", default_value = "H100")]
    pub device: String,
    /// A preset such as `dgx-h100:2`, or a JSON file that describes the cluster.
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["gpus"])]
    pub cluster: Option<String>,
}

impl ClusterArgs {
    /// The cost model of the cluster that the flags name.
    pub fn cost_model(&self) -> Result<CostModel, CliError> {
        let catalogue = Catalogue::shipped()?;
        let cluster = self.cluster(&catalogue)?;
        Ok(CostModel::new(&cluster, &catalogue)?)
    }

    fn cluster(&self, catalogue: &Catalogue) -> Result<Cluster, CliError> {
        if let Some(name) = &self.cluster {
            let path = PathBuf::from(name);
            let is_file = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
            if is_file || path.is_file() {
                let text = std::fs::read_to_string(&path).map_err(CliError::io(&path))?;
                return Ok(Cluster::from_json(&text, catalogue)?);
            }
            return Ok(Cluster::preset(name, catalogue)?);
        }
        let gpus = self.gpus.ok_or_else(|| {
            CliError::Usage("say for what: --gpus N [--device NAME], or --cluster NAME|FILE".into())
        })?;
        Ok(Cluster::homogeneous(&self.device, gpus, catalogue)?)
    }
}
