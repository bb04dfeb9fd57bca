"""Public names that are no doors: records that the package fills in, and steps that it takes by itself."""

# Records: functions of the package return them with computed contents. Users do not build records to pass them in.
RECORDS = {
    "": "Hemisphere Lifetimes LimitClause LimitHypothesis LimitShape MergeTree Modes NeuralCollapse Plateaus Support "
    "Survival TimeToCluster Trajectory",
    "hardmax": "Certificate Clause ExaminedClause Examination LeaderChoice Leaders LimitSet",
    "sentiment": "Evaluation Explanation Leader LeadersReport Leading Split SyntheticReviews",
    "transformer": "DepthProfile Detector Heads KeyValueMemory LSTMStates ResidualStream",
    "probe": "Activation AttentionSinks Average Bridge CausalTrace Comparison Controls CopyOf Directions Edit "
    "EnergyBudget FirstToken Generated HeadClusters HeadCorrelations HeadMatrices HeadSigns MeanOver Model "
    "NearestWords NextWords ParameterCounts Place PositionHeads Recorded Similarity Streamed Survey Trace ValueSpectra",
    "phase": "Branch Stationary",
    "design": "Delay Hold Recovery Sensitivity Steering",
    "plot": "Player",
    "experiments": "Claim Experiment Film Measured Outcome Source Subject",
}

# Steps by class and method: the package calls them within a computation or its own checks, with tokens, times and
# matrices that a door has checked before. Users implement them for masks, laws or norms of their own.
STEPS = {
    "": "check enter queries exponential hardmax resolve allowed covers reaches attended_mass jumps between summary "
    "ALiBi.at Decay.at RelativeBias.at Rotary.at log_weights turn MergeTree.steps error_order func init order step "
    "strong_order term_structure",
    "hardmax": "check HardmaxLayer.step",
    "transformer": "check enter validated brake growth carry read write retract tangent distance summary statistics "
    "MultiHeadAttention.passed LanguageModel.check_range Transformer.scan longest",
    "probe": "check enter blocks order position_bias embed finish pool context attention_maps word_factors norm_scales "
    "last_scale shared_context unembedding drop_head summary save load to_xarray to_pandas allowed measured",
    "sentiment": "summary",
    "design": "summary",
    "phase": "steps Adaptive.run NormalisedEuler.run draw sample",
    "experiments": "Measured.record Source.record",
}


def split(name: str) -> tuple[str, str]:
    """Splits a public name into its module, empty for `clusterjax` itself, and the name in the module."""
    module, dot, rest = name.partition(".")
    return (module, rest) if dot and module[0].islower() else ("", name)


def is_door(name: str) -> bool:
    """True if users call this public name with values of their own; abstract classes are called through others."""
    if any(part.startswith("Abstract") for part in name.split(".")):
        return False
    module, rest = split(name)
    cls, _, method = rest.partition(".")
    if method:
        return not {method, rest} & set(STEPS.get(module, "").split())
    return cls not in RECORDS.get(module, "").split()
