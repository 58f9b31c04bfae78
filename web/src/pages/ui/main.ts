import { mount } from 'svelte';
import 'uplot/dist/uPlot.min.css';
import '../../lib/base.css';
import './ui.css';
import Ui from './Ui.svelte';

mount(Ui, { target: document.getElementById('app')! });
